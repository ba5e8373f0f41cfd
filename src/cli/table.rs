//! Tables for people: columns aligned, numbers to the right.

/// A table that grows row by row.
pub struct Table {
    headers: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
}

/// One field of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cell {
    /// Stands at the left of its column.
    Text(String),
    /// Stands at the right of its column.
    Number(u64),
}

impl Cell {
    fn text(&self) -> String {
        match self {
            // A name with control characters must not reach the terminal.
            Self::Text(text) => text.chars().filter(|c| !c.is_control()).collect(),
            Self::Number(number) => number.to_string(),
        }
    }
}

impl Table {
    /// An empty table.
    pub fn new(headers: &'static [&'static str]) -> Self {
        Self { headers, rows: Vec::new() }
    }

    /// Adds a row, with a cell for every header.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table with its header, each line with its end and without blanks before it.
    pub fn render(&self) -> String {
        let columns = self.headers.len();
        let number = |column: usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.any(|cell| matches!(cell, Cell::Number(_)))
        };
        let right: Vec<bool> = (0..columns).map(number).collect();
        let mut lines: Vec<Vec<String>> = vec![self.headers.iter().map(|h| (*h).to_owned()).collect()];
        lines.extend(self.rows.iter().map(|row| row.iter().map(Cell::text).collect::<Vec<_>>()));
        let width = |column: usize| {
            lines
                .iter()
                .filter_map(|line| line.get(column))
                .map(|text| text.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for line in &lines {
            let mut text = String::new();
            for ((cell, width), right) in line.iter().zip(&widths).zip(&right) {
                if !text.is_empty() {
                    text += "  ";
                }
                text += &if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
            }
            out += text.trim_end();
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_left_and_numbers_right() {
        let mut table = Table::new(&["port", "packets", "state"]);
        table.row([Cell::Text("wan".into()), Cell::Number(5), Cell::Text("up".into())]);
        table.row([Cell::Text("lan-side".into()), Cell::Number(12_345_678), Cell::Text("-".into())]);
        let expected = "port       packets  state\nwan              5  up\nlan-side  12345678  -\n";
        assert_eq!(table.render(), expected);
    }
}
