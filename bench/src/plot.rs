//! Plots, as SVG.

use std::{io, path::Path};

use plotters::{
    coord::ranged1d::Ranged,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

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

/// One bar of a plot.
pub struct Bar {
    /// Bars of one group stand together, under its name, and have one color.
    pub group: String,
    /// What stands beside it.
    pub name: String,
    /// Its length.
    pub value: f64,
    /// The range of the values that it is the median of.
    pub low: f64,
    /// As above.
    pub high: f64,
}

/// Draws bars from left to right, one under the other, with a whisker from `low` to `high`.
///
/// # Errors
/// When the file cannot be written.
pub fn bars(path: &Path, title: &str, x: &str, bars: &[Bar]) -> io::Result<()> {
    draw_bars(path, title, x, bars).map_err(|e| io::Error::other(format!("{}: {e}", path.display())))
}

fn draw_bars(path: &Path, title: &str, x: &str, bars: &[Bar]) -> Result<(), Box<dyn std::error::Error>> {
    let mut groups: Vec<&str> = Vec::new();
    for bar in bars {
        if !groups.contains(&bar.group.as_str()) {
            groups.push(&bar.group);
        }
    }
    // A line for each bar, and one for each group's name.
    let rows = bars.len() + groups.len();
    let longest = bars.iter().map(|bar| bar.high.max(bar.value)).fold(0.0, f64::max).max(1e-9) * 1.1;
    let root = SVGBackend::new(path, (720, 90 + 24 * rows as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .margin_left(230)
        .x_label_area_size(44)
        .build_cartesian_2d(0.0..longest, 0.0..rows as f64)?;
    chart.configure_mesh().x_desc(x).disable_y_mesh().disable_y_axis().light_line_style(WHITE).draw()?;
    let mut row = rows as f64;
    for (n, group) in groups.iter().enumerate() {
        let color = Palette99::pick(n).to_rgba();
        row -= 1.0;
        label(&root, group, chart.backend_coord(&(0.0, row + 0.5)), 14)?;
        for bar in bars.iter().filter(|bar| bar.group == *group) {
            row -= 1.0;
            label(&root, &bar.name, chart.backend_coord(&(0.0, row + 0.5)), 12)?;
            let middle = row + 0.5;
            chart.draw_series([
                Rectangle::new([(0.0, row + 0.15), (bar.value, row + 0.85)], color.filled()),
                Rectangle::new([(bar.low, middle - 0.02), (bar.high, middle + 0.02)], BLACK.filled()),
            ])?;
        }
    }
    root.present()?;
    Ok(())
}

/// Writes `text` so that it ends at this place.
fn label(
    root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    text: &str,
    (x, y): (i32, i32),
    size: u32,
) -> Result<(), Box<dyn std::error::Error>> {
    let style = ("sans-serif", size).into_text_style(root).pos(Pos::new(HPos::Right, VPos::Center));
    root.draw(&Text::new(text.to_owned(), (x - 8, y), style))?;
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
