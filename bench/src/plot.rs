//! Plots, as SVG.

use std::{io, path::Path};

use plotters::{coord::ranged1d::Ranged, prelude::*};

/// One line of a plot.
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// Draws `series` over a logarithmic (to base 2) x axis.
///
/// # Errors
/// When the file cannot be written.
pub fn lines(path: &Path, title: &str, x: &str, y: &str, series: &[Series]) -> io::Result<()> {
    draw(path, title, x, y, series).map_err(|e| io::Error::other(format!("{}: {e}", path.display())))
}

fn draw(
    path: &Path,
    title: &str,
    x: &str,
    y: &str,
    series: &[Series],
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || series.iter().flat_map(|s| &s.points);
    let low = points().map(|p| p.0).fold(f64::INFINITY, f64::min);
    let high = points().map(|p| p.0).fold(0.0, f64::max);
    let top = points().map(|p| p.1).fold(0.0, f64::max) * 1.1;
    let root = SVGBackend::new(path, (720, 440)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((low..high.max(low + 1.0)).log_scale().base(2.0), 0.0..top.max(1.0))?;
    chart.configure_mesh().x_desc(x).y_desc(y).light_line_style(WHITE).draw()?;
    for (i, line) in series.iter().enumerate() {
        let color = Palette99::pick(i).to_rgba();
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), color.stroke_width(2)).point_size(3))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    legend(&mut chart)?;
    root.present()?;
    Ok(())
}

/// Draws `series` over time in seconds. The colors begin anew every `colors` series; one without a
/// name has no place in the legend.
///
/// # Errors
/// When the file cannot be written.
pub fn over_time(path: &Path, title: &str, y: &str, series: &[Series], colors: usize) -> io::Result<()> {
    draw_over_time(path, title, y, series, colors)
        .map_err(|e| io::Error::other(format!("{}: {e}", path.display())))
}

fn draw_over_time(
    path: &Path,
    title: &str,
    y: &str,
    series: &[Series],
    colors: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || series.iter().flat_map(|s| &s.points);
    let end = points().map(|p| p.0).fold(1.0, f64::max);
    let top = points().map(|p| p.1).fold(1.0, f64::max) * 1.3;
    let root = SVGBackend::new(path, (720, 440)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart.configure_mesh().x_desc("seconds").y_desc(y).light_line_style(WHITE).draw()?;
    for (i, line) in series.iter().enumerate() {
        let color = Palette99::pick(i % colors).to_rgba();
        let drawn = chart.draw_series(LineSeries::new(line.points.iter().copied(), color.stroke_width(2)))?;
        if !line.name.is_empty() {
            drawn
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        }
    }
    legend(&mut chart)?;
    root.present()?;
    Ok(())
}

fn legend<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
) -> Result<(), Box<dyn std::error::Error>>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}
