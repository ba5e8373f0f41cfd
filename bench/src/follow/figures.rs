//! What was measured, with what was to be reached.

use std::{fs, io, path::Path};

use crate::report;

/// What stands below the table.
const FILES: &str = "
All figures are in [`bench/results/follow.csv`](../bench/results/follow.csv).

![from a change to forwarding](../bench/results/follow-latency.svg)
![cycles per packet over time](../bench/results/follow-cycles.svg)
";

/// One figure.
struct Figure {
    key: String,
    what: String,
    value: f64,
    unit: &'static str,
    /// It should not be above this.
    goal: Option<f64>,
}

/// All figures, in the order in which they were measured.
pub struct Figures(Vec<Figure>);

impl Figures {
    /// None yet.
    pub fn new() -> Self {
        Self(Vec::new())
    }

    /// Notes a figure.
    pub fn add(&mut self, key: &str, what: &str, value: f64, unit: &'static str) {
        self.note(key, what, value, unit, None);
    }

    /// As [`Figures::add`], where the value should be at most `goal`.
    pub fn add_with_goal(&mut self, key: &str, what: &str, value: f64, unit: &'static str, goal: f64) {
        self.note(key, what, value, unit, Some(goal));
    }

    fn note(&mut self, key: &str, what: &str, value: f64, unit: &'static str, goal: Option<f64>) {
        self.0.push(Figure { key: key.into(), what: what.into(), value, unit, goal });
    }

    /// The table, as Markdown.
    pub fn table(&self) -> String {
        let mut table = String::from("| | measured | at most |\n|---|---|---|\n");
        for Figure { what, value, unit, goal, .. } in &self.0 {
            let missed = if goal.is_some_and(|goal| *value > goal) { " (missed)" } else { "" };
            let goal = goal.map(text).unwrap_or_default();
            let measured = format!("{} {unit}", text(*value));
            table += &format!("| {what} | {} | {goal}{missed} |\n", measured.trim());
        }
        table
    }

    /// Puts the table, and where the data and the plots are, into a Markdown file of `docs/`, at its
    /// marked place.
    ///
    /// # Errors
    /// Those of [`report::put`].
    pub fn put_into(&self, path: &Path) -> io::Result<()> {
        report::put(path, "follow", &format!("{}{FILES}", self.table()))
    }

    /// Writes them as CSV.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut csv = String::from("figure,value,unit,at_most\n");
        for Figure { key, value, unit, goal, .. } in &self.0 {
            let goal = goal.map(text).unwrap_or_default();
            csv += &format!("{key},{},{unit},{goal}\n", text(*value));
        }
        fs::write(path, csv)
    }
}

/// Three or four figures that count.
fn text(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v == v.trunc() => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
