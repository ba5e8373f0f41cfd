//! Messages for people: the one place that takes out of them what helps nobody. Everything that
//! the commands, the log and the control socket say goes through here.

use std::borrow::Cow;

/// What the standard library puts behind an error of the system's: its number.
const NUMBER: &str = " (os error ";

/// `text` without the numbers of the system's errors: `No such file or directory (os error 2)`
/// becomes `No such file or directory`.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(NUMBER) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(NUMBER) {
        let (before, number) = rest.split_at(at);
        let number = &number[NUMBER.len()..];
        let digits = number.trim_start_matches('-').trim_start_matches(|c: char| c.is_ascii_digit());
        match digits.strip_prefix(')') {
            Some(after) if digits.len() < number.len() => {
                out.push_str(before);
                rest = after;
            }
            // Somebody's own words.
            _ => {
                out.push_str(&rest[..at + NUMBER.len()]);
                rest = number;
            }
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_errors_are_left_out_and_nothing_else_is() {
        for (text, expected) in [
            ("No such file or directory (os error 2)", "No such file or directory"),
            (
                "cannot make /x (Permission denied (os error 13)); make it",
                "cannot make /x (Permission denied); make it",
            ),
            ("a (os error 1), b (os error -2)", "a, b"),
            ("a (os error )", "a (os error )"),
            ("a (os error two) (os error 2", "a (os error two) (os error 2"),
            ("", ""),
        ] {
            assert_eq!(plain(text), expected);
        }
        let real = std::io::Error::from_raw_os_error(libc::ENOSPC).to_string();
        assert!(real.contains(NUMBER) && !plain(&real).contains("os error"), "{real}");
    }
}
