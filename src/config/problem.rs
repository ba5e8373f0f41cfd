//! What is wrong with a configuration: one line each, with the file, the line and the key.

use std::fmt;

/// One thing that is wrong with a configuration file, or doubtful about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The file, as it was named by whoever asked for it.
    pub file: String,
    /// The line, from 1; 0 when it is about the file as a whole.
    pub line: usize,
    /// The column in characters, from 1; 0 when it is about the file as a whole.
    pub column: usize,
    /// The key, `route.to`; empty when it is about none.
    pub key: String,
    /// What is wrong; what to do.
    pub message: String,
}

impl Problem {
    /// A problem of the file as a whole.
    pub fn of_file(file: &str, message: impl fmt::Display) -> Self {
        Self { file: file.into(), line: 0, column: 0, key: String::new(), message: message.to_string() }
    }
}

impl fmt::Display for Problem {
    /// `FILE:LINE: KEY: message`, without a newline and without control characters, whatever the
    /// file holds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.file.clone();
        if self.line > 0 {
            text += &format!(":{}", self.line);
        }
        text += ": ";
        if !self.key.is_empty() {
            text += &format!("{}: ", self.key);
        }
        text += &self.message;
        for c in text.chars() {
            if c.is_control() { write!(f, "{}", c.escape_default()) } else { write!(f, "{c}") }?;
        }
        Ok(())
    }
}

/// Everything that is wrong with a configuration file, in the order of its lines; never empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigErrors(pub Vec<Problem>);

impl fmt::Display for ConfigErrors {
    /// One problem a line, without a newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

impl From<Problem> for ConfigErrors {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

/// A place in the file: a byte offset, until somebody needs the line.
pub(super) type Offset = usize;

/// Problems of one file that are told one by one.
const MOST: usize = 100;

/// Collects the problems of one file.
pub(super) struct Problems<'a> {
    file: &'a str,
    text: &'a str,
    /// Where each line begins.
    lines: Vec<Offset>,
    errors: Vec<(Offset, Problem)>,
    warnings: Vec<(Offset, Problem)>,
}

impl<'a> Problems<'a> {
    /// Nothing is wrong yet with the file named `file`, which holds `text`.
    pub(super) fn new(file: &'a str, text: &'a str) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect();
        Self { file, text, lines, errors: Vec::new(), warnings: Vec::new() }
    }

    /// Something that must be put right.
    pub(super) fn error(&mut self, at: Offset, key: impl Into<String>, message: impl fmt::Display) {
        let problem = self.problem(at, key, message);
        self.errors.push((at, problem));
    }

    /// Something that may be meant, but probably is not.
    pub(super) fn warn(&mut self, at: Offset, key: impl Into<String>, message: impl fmt::Display) {
        let problem = self.problem(at, key, message);
        self.warnings.push((at, problem));
    }

    /// A problem at `at`, which is not collected.
    pub(super) fn problem(&self, at: Offset, key: impl Into<String>, message: impl fmt::Display) -> Problem {
        let (line, column) = self.place(at);
        Problem { file: self.file.into(), line, column, key: key.into(), message: message.to_string() }
    }

    /// The line of `at`, from 1.
    pub(super) fn line(&self, at: Offset) -> usize {
        self.place(at).0
    }

    /// The line and the column of a byte offset, both from 1.
    fn place(&self, at: Offset) -> (usize, usize) {
        let at = at.min(self.text.len());
        let line = self.lines.partition_point(|&start| start <= at);
        let before = &self.text.as_bytes()[self.lines[line - 1]..at];
        // Continuation bytes begin no character.
        (line, 1 + before.iter().filter(|&&b| b & 0xc0 != 0x80).count())
    }

    /// The number of errors so far.
    pub(super) fn errors(&self) -> usize {
        self.errors.len()
    }

    /// The warnings, or the errors if there are any; in the order of the file, and no more than
    /// somebody may want to read.
    pub(super) fn finish(self) -> Result<Vec<Problem>, ConfigErrors> {
        let in_order = |mut list: Vec<(Offset, Problem)>| {
            list.sort_by_key(|(at, _)| *at);
            let more = list.len().saturating_sub(MOST);
            let mut list: Vec<_> = list.into_iter().take(MOST).map(|(_, problem)| problem).collect();
            if more > 0 {
                list.push(Problem::of_file(self.file, format!("and {more} more like these")));
            }
            list
        };
        if self.errors.is_empty() {
            Ok(in_order(self.warnings))
        } else {
            Err(ConfigErrors(in_order(self.errors)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_from_one_and_in_characters() {
        let text = "a\nµb\n";
        let problems = Problems::new("f", text);
        assert_eq!(problems.place(0), (1, 1));
        assert_eq!(problems.place(2), (2, 1));
        assert_eq!(problems.place(4), (2, 2));
        assert_eq!(problems.place(99), (3, 1));
    }

    #[test]
    fn a_problem_is_one_line_whatever_it_quotes() {
        let problem = Problem::of_file("a\nb", "quotes \x1b[31m");
        assert_eq!(problem.to_string(), "a\\nb: quotes \\u{1b}[31m");
    }
}
