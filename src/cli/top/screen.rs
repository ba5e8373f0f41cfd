//! The screen of `sweepd top`: from what has been seen to cells. Made for 80 columns and 24 rows;
//! at 60 by 15 it still shows everything, with shorter headings; on a smaller terminal it leaves
//! things out, and cuts no heading.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::Line,
    widgets::{Block, Borders, Paragraph, Row, Sparkline, Table},
};
use sweepd::stats::netstat::{Unit, humanize};

use super::history::{History, PortRate};

/// Rows that the verdicts and the workers have at least, where there is room for more than ports.
const BELOW: u16 = 4;
/// Rows of the graphs with a scale that one can read.
const GRAPHS: u16 = 7;

/// Draws everything; `lives` is whether the daemon runs.
pub fn draw(frame: &mut Frame<'_>, history: &History, lives: bool) {
    let area = frame.area();
    let heights = heights(history.ports().len(), area.height);
    let [head, table, graphs, below] = Layout::vertical(heights.map(Constraint::Length)).areas(area);
    frame.render_widget(
        Line::styled(title(history, lives, head.width), Style::new().add_modifier(Modifier::REVERSED)),
        head,
    );
    draw_ports(frame, history, table);
    let [received, sent] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(1).areas(graphs);
    draw_graph(frame, history, 0, received);
    draw_graph(frame, history, 1, sent);
    // A half of less could not hold a worker's line.
    if area.width < 36 {
        return draw_verdicts(frame, history, below);
    }
    let [verdicts, workers] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(1).areas(below);
    draw_verdicts(frame, history, verdicts);
    draw_workers(frame, history, workers);
}

/// Rows of the title, the ports, the graphs and what is below, of `height` in all: the graphs
/// are lower where rows are few, and then not there.
fn heights(ports: usize, height: u16) -> [u16; 4] {
    let most = (height / 2).saturating_sub(3).clamp(1, 8);
    let table = (ports.clamp(1, usize::from(most)) as u16 + 3).min(height.saturating_sub(1));
    let left = height.saturating_sub(1 + table);
    let graphs = match left.saturating_sub(BELOW) {
        0..3 => 0,
        rows => rows.min(GRAPHS),
    };
    [height.min(1), table, graphs, left - graphs]
}

/// The first of these that is not wider than `width`, or else the last.
fn fitting<const N: usize>(width: u16, texts: [String; N]) -> String {
    let last = texts.last().cloned().unwrap_or_default();
    texts.into_iter().find(|text| text.chars().count() <= usize::from(width)).unwrap_or(last)
}

fn title(history: &History, lives: bool, width: u16) -> String {
    let daemon = match (history.pid(), lives) {
        (Some(pid), true) => format!("sweepd, process {pid}"),
        (Some(pid), false) => format!("sweepd, process {pid}, has ended; waiting for the next"),
        (None, _) => "sweepd".into(),
    };
    let (waiting, seconds) = (history.waiting(), history.interval().as_secs());
    let flows = humanize(history.flows(), Unit::Count);
    fitting(
        width,
        [
            format!(" {daemon}   flows: {flows}   waiting packets: {waiting}   every {seconds} s   q ends "),
            format!(" {daemon}   flows: {flows}   waiting: {waiting}   q ends "),
            format!(" {daemon}   flows: {flows}   q ends "),
            format!(" {daemon}   q ends "),
            format!(" {daemon}"),
            " sweepd".into(),
        ],
    )
}

fn count(rate: f64) -> String {
    humanize(rate as u64, Unit::Count)
}

fn block(title: String) -> Block<'static> {
    Block::new().borders(Borders::TOP).title(title)
}

/// A column of the ports' table: its heading, the same for less room, and what it has of a port.
type Column = (&'static str, &'static str, fn(&PortRate) -> String);

const COLUMNS: [Column; 6] = [
    ("port", "port", |port| port.name.clone()),
    ("in pkt/s", "in p/s", |port| count(port.packets[0])),
    ("in bit/s", "in b/s", |port| count(port.bits[0])),
    ("out pkt/s", "out p/s", |port| count(port.packets[1])),
    ("out bit/s", "out b/s", |port| count(port.bits[1])),
    ("lost/s", "lost/s", |port| count(port.lost)),
];

/// Which columns fit, whether their headings are the short ones, and their widths: of the first,
/// which takes all the room there is, and of each other.
fn columns(width: u16) -> (&'static [usize], bool, u16, u16) {
    match width {
        71.. => (&[0, 1, 2, 3, 4, 5], false, 16, 10),
        48..71 => (&[0, 1, 2, 3, 4, 5], true, 8, 7),
        32..48 => (&[0, 1, 3, 5], true, 8, 7),
        _ => (&[0, 1], true, 4, 6),
    }
}

fn draw_ports(frame: &mut Frame<'_>, history: &History, area: Rect) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let (shown, short, first, other) = columns(area.width);
    let names = shown.iter().map(|n| if short { COLUMNS[*n].1 } else { COLUMNS[*n].0 });
    let rows = history
        .ports()
        .iter()
        .map(|port| Row::new(shown.iter().map(|n| COLUMNS[*n].2(port)).collect::<Vec<_>>()));
    let widths =
        [Constraint::Min(first)].into_iter().chain(shown.iter().skip(1).map(|_| Constraint::Length(other)));
    let (all, room) = (history.ports().len(), usize::from(area.height.saturating_sub(2)));
    let title = if all > room { format!("Ports ({room} of {all})") } else { "Ports".into() };
    let table = Table::new(rows, widths).header(Row::new(names).style(bold)).block(block(title));
    frame.render_widget(table, area);
}

fn draw_graph(frame: &mut Frame<'_>, history: &History, way: usize, area: Rect) {
    let rates = history.graph(way, usize::from(area.width));
    let (now, most) = (rates.last().copied().unwrap_or(0), rates.iter().copied().max().unwrap_or(0));
    let (now, most) = (count(now as f64), count(most as f64));
    let (name, short) = [("Received", "In"), ("Sent", "Out")][way];
    let title = fitting(
        area.width,
        [
            format!("{name}: {now} pkt/s, at most {most}"),
            format!("{short}: {now} p/s, at most {most}"),
            format!("{short}: {now} p/s"),
        ],
    );
    // The newest at the right edge.
    let mut data = vec![0; usize::from(area.width) - rates.len()];
    data.extend(rates);
    frame.render_widget(Sparkline::default().data(data).block(block(title)), area);
}

fn draw_verdicts(frame: &mut Frame<'_>, history: &History, area: Rect) {
    let rows = history.verdicts().iter().map(|(name, rate)| Row::new([name.clone(), count(*rate)]));
    let widths = [Constraint::Fill(1), Constraint::Length(8)];
    let title =
        fitting(area.width, ["Packets ended, by second".into(), "Ended, by second".into(), "Ended".into()]);
    frame.render_widget(Table::new(rows, widths).block(block(title)), area);
}

fn draw_workers(frame: &mut Frame<'_>, history: &History, area: Rect) {
    let block = block("Workers' load".into());
    if history.workers().is_empty() {
        let text = if cfg!(target_os = "linux") { "" } else { "not known on this system" };
        frame.render_widget(Paragraph::new(text).block(block), area);
        return;
    }
    // What is left beside the name and the number.
    let longest = f64::from(area.width.saturating_sub(17).min(20));
    let bar = |share: f64| "#".repeat((share * longest).round() as usize);
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
            "flows: 1.2k",
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
    fn sixty_columns_and_15_rows_show_everything_with_whole_headings() {
        let text = screen(&seen(), 60, 15);
        let headings = "port                 in p/s  in b/s  out p/s out b/s lost/s";
        for part in [
            "process 4711",
            "flows: 1.2k",
            "q ends",
            headings,
            "480M",
            "In: 1.0M p/s, at most 1.0M",
            "Out: 1.0M p/s, at most 1.0M",
            "Packets ended, by second",
            "no_route",
            "worker 1   100 % #",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        // Graphs, and not only their titles.
        assert!(text.contains('█'), "{text}");
    }

    #[test]
    fn a_small_screen_leaves_out_columns_and_graphs_and_cuts_no_heading() {
        let text = screen(&seen(), 40, 12);
        for part in ["in p/s", "out p/s", "lost/s", "Ended, by second", "worker 1"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("b/s"), "{text}");
        let text = screen(&seen(), 20, 10);
        assert!(text.contains("in p/s") && !text.contains("out p") && text.contains("Ended"), "{text}");
        assert!(!text.contains("Work") && text.starts_with(" sweepd  "), "{text}");
    }

    #[test]
    fn more_ports_than_rows_are_counted() {
        let mut history = History::new(Duration::from_secs(1));
        for n in 0..2 {
            let mut look = look(n);
            look.names = (0..20).map(|port| format!("p{port}")).collect();
            look.ports = vec![look.ports[0].clone(); 20];
            history.add(look, Instant::now());
        }
        let text = screen(&history, 80, 24);
        assert!(text.contains("Ports (9 of 20)"), "{text}");
        assert!(text.contains("p7 ") && text.contains("forwarded"), "{text}");
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
