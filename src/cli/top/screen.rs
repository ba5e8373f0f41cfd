//! The screen of `sweepd top`: from what has been seen to cells. Made for 80 columns and 24 rows;
//! on a smaller terminal it shows less, on a larger one more.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::Line,
    widgets::{Block, Borders, Paragraph, Row, Sparkline, Table},
};
use sweepd::stats::netstat::{Unit, humanize};

use super::history::History;

/// Draws everything; `lives` is whether the daemon runs.
pub fn draw(frame: &mut Frame<'_>, history: &History, lives: bool) {
    let ports = history.ports().len().clamp(1, 8) as u16;
    let [head, table, graphs, below] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(ports + 3),
        Constraint::Length(7),
        Constraint::Min(3),
    ])
    .areas(frame.area());
    frame.render_widget(
        Line::styled(title(history, lives), Style::new().add_modifier(Modifier::REVERSED)),
        head,
    );
    draw_ports(frame, history, table);
    let [received, sent] = Layout::horizontal([Constraint::Fill(1); 2]).areas(graphs);
    draw_graph(frame, history, 0, received);
    draw_graph(frame, history, 1, sent);
    let [verdicts, workers] = Layout::horizontal([Constraint::Fill(1); 2]).areas(below);
    draw_verdicts(frame, history, verdicts);
    draw_workers(frame, history, workers);
}

fn title(history: &History, lives: bool) -> String {
    let daemon = match (history.pid(), lives) {
        (Some(pid), true) => format!("sweepd, process {pid}"),
        (Some(pid), false) => format!("sweepd, process {pid}, has ended; waiting for the next"),
        (None, _) => "sweepd".into(),
    };
    format!(
        " {daemon}   waiting packets: {}   every {} s   q ends ",
        history.waiting(),
        history.interval().as_secs()
    )
}

fn count(rate: f64) -> String {
    humanize(rate as u64, Unit::Count)
}

fn block(title: String) -> Block<'static> {
    Block::new().borders(Borders::TOP).title(title)
}

fn draw_ports(frame: &mut Frame<'_>, history: &History, area: Rect) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let names = ["port", "in pkt/s", "in bit/s", "out pkt/s", "out bit/s", "lost/s"];
    let rows = history.ports().iter().map(|port| {
        Row::new([
            port.name.clone(),
            count(port.packets[0]),
            count(port.bits[0]),
            count(port.packets[1]),
            count(port.bits[1]),
            count(port.lost),
        ])
    });
    let widths = [Constraint::Min(16)].into_iter().chain([Constraint::Length(10); 5]);
    let table = Table::new(rows, widths).header(Row::new(names).style(bold)).block(block("Ports".into()));
    frame.render_widget(table, area);
}

fn draw_graph(frame: &mut Frame<'_>, history: &History, way: usize, area: Rect) {
    let rates = history.graph(way, usize::from(area.width));
    let (now, most) = (rates.last().copied().unwrap_or(0), rates.iter().copied().max().unwrap_or(0));
    let name = ["Received", "Sent"][way];
    let title = format!("{name}: {} pkt/s, at most {}", count(now as f64), count(most as f64));
    // The newest at the right edge.
    let mut data = vec![0; usize::from(area.width) - rates.len()];
    data.extend(rates);
    frame.render_widget(Sparkline::default().data(data).block(block(title)), area);
}

fn draw_verdicts(frame: &mut Frame<'_>, history: &History, area: Rect) {
    let rows = history.verdicts().iter().map(|(name, rate)| Row::new([name.clone(), count(*rate)]));
    let widths = [Constraint::Min(18), Constraint::Length(8)];
    frame.render_widget(Table::new(rows, widths).block(block("Packets ended, by second".into())), area);
}

fn draw_workers(frame: &mut Frame<'_>, history: &History, area: Rect) {
    let block = block("Workers' load".into());
    if history.workers().is_empty() {
        let text = if cfg!(target_os = "linux") { "" } else { "not known on this system" };
        frame.render_widget(Paragraph::new(text).block(block), area);
        return;
    }
    let bar = |share: f64| "#".repeat((share * 20.0).round() as usize);
    let rows = history.workers().iter().map(|(worker, share)| {
        Row::new([format!("worker {worker}"), format!("{:>3.0} %", share * 100.0), bar(*share)])
    });
    let widths = [Constraint::Length(10), Constraint::Length(5), Constraint::Min(1)];
    frame.render_widget(Table::new(rows, widths).block(block), area);
}

#[cfg(test)]
mod tests {
    use super::{super::history::tests::look, *};
    use ratatui::{Terminal, backend::TestBackend};
    use std::time::{Duration, Instant};

    /// The screen's lines, at that size.
    fn screen(history: &History, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, history, true)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(usize::from(width));
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>() + "\n").collect()
    }

    fn seen() -> History {
        let mut history = History::new(Duration::from_secs(1));
        let start = Instant::now();
        for n in 0..60 {
            history.add(look(n), start + Duration::from_secs(n));
        }
        history
    }

    #[test]
    fn eighty_columns_and_24_rows_show_everything() {
        let text = screen(&seen(), 80, 24);
        for part in [
            "process 4711",
            "q ends",
            "in pkt/s",
            "wan",
            "lan",
            "1.0M",
            "480M",
            "Received: 1.0M pkt/s",
            "Sent:",
            "forwarded",
            "no_route",
            "worker 0",
            " 50 %",
            "worker 1",
            "100 %",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("host "), "what does not happen is not shown:\n{text}");
    }

    #[test]
    fn any_size_can_be_drawn_before_and_after_the_first_look() {
        let nothing = History::new(Duration::from_secs(1));
        let seen = seen();
        for (width, height) in [(1, 1), (10, 3), (40, 12), (80, 24), (300, 100)] {
            screen(&nothing, width, height);
            screen(&seen, width, height);
        }
    }
}
