//! The live counter's format: that of FreeBSD's `netstat -w`, byte for byte, so that eyes and
//! scripts trained on it need nothing new.
//!
//! Input packets are those that arrived, the ones lost before a worker saw them included: the
//! published figures that people compare with were read that way (12M in = 8.4M taken and sent +
//! 0.5M dropped on the way out + 2.9M lost before). `show ports` has the packets that workers
//! took. Input bytes are of packets taken only: nobody knows the length of a lost packet. Bytes
//! are without FCS.

use super::read::PortTotals;

/// Rows between two headers.
const ROWS_PER_HEADER: u32 = 21;

/// What the view shows, and how.
#[derive(Clone, Default, Debug)]
pub struct NetstatOptions {
    /// Shows output drops in a column of their own (`-d`).
    pub drops: bool,
    /// At most four characters a number (`-h`).
    pub human: bool,
}

/// Makes the view's lines. Print [`Netstat::header`] first, then a row per interval.
#[derive(Debug)]
pub struct Netstat {
    options: NetstatOptions,
    name: String,
    rows: u32,
}

impl Netstat {
    /// A view of this port (`-I`), or of all together, that has not printed anything yet.
    pub fn new(options: NetstatOptions, port: Option<&str>) -> Self {
        Self { options, name: port.unwrap_or("(Total)").to_owned(), rows: 0 }
    }

    /// The two header lines, each with its line end.
    pub fn header(&self) -> String {
        // "idrops" is wider than its column: the headers after it stand one column right of their
        // numbers. That is how the original looks.
        let mut text = format!(
            "{:>17} {:>14} {:>16}\n{:>10} {:>5} {:>5} {:>10} {:>10} {:>5} {:>10} {:>5}",
            "input",
            self.name,
            "output",
            "packets",
            "errs",
            "idrops",
            "bytes",
            "packets",
            "errs",
            "bytes",
            "colls"
        );
        if self.options.drops {
            text.push_str(" drops");
        }
        text.push('\n');
        text
    }

    /// The line, with its end, of what happened between two moments; the header comes before it
    /// again when 21 rows have passed.
    pub fn row(&mut self, before: &PortTotals, after: &PortTotals) -> String {
        let mut text = String::new();
        if self.rows == ROWS_PER_HEADER {
            text = self.header();
            self.rows = 0;
        }
        self.rows += 1;
        // A counter that went back began anew: nothing is known of this interval.
        let passed = |of: fn(&PortTotals) -> u64| of(after).saturating_sub(of(before));
        let idrops = passed(|t| t.rx_dropped);
        let columns = [
            (10, passed(|t| t.rx_packets) + idrops, Unit::Count),
            (5, passed(|t| t.rx_errors), Unit::Count),
            (5, idrops, Unit::Count),
            (10, passed(|t| t.rx_bytes), Unit::Bytes),
            (10, passed(|t| t.tx_packets), Unit::Count),
            (5, passed(|t| t.tx_errors), Unit::Count),
            (10, passed(|t| t.tx_bytes), Unit::Bytes),
        ];
        for (width, n, unit) in columns {
            text.push_str(&format!("{:>width$} ", self.number(n, unit)));
        }
        // There have been no collisions for decades; the column stays.
        text.push_str(&format!("{:>5}", 0));
        if self.options.drops {
            text.push_str(&format!(" {:>5} ", self.number(passed(|t| t.tx_dropped), Unit::Count)));
        }
        text.push('\n');
        text
    }

    fn number(&self, n: u64, unit: Unit) -> String {
        if self.options.human { humanize(n, unit) } else { n.to_string() }
    }
}

/// What a number counts, which says by what it is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Things: divided by 1000.
    Count,
    /// Bytes: divided by 1024.
    Bytes,
}

/// `n` in at most four characters, rounded: `999`, `1.0k`, `9.9k`, `10k`, `999k`, `1.0M`.
pub fn humanize(n: u64, unit: Unit) -> String {
    let (div, one_decimal_below, suffixes) = match unit {
        Unit::Count => (1000, 950, ["", "k", "M", "G", "T", "P"]),
        Unit::Bytes => (1024, 973, ["", "K", "M", "G", "T", "P"]),
    };
    let (mut q, mut r, mut divisions) = (n, 0, 0);
    while (q >= 1000 || (q == 999 && r >= div / 2)) && divisions + 1 < suffixes.len() {
        (q, r) = (q / div, q % div);
        divisions += 1;
    }
    let suffix = suffixes[divisions];
    if divisions > 0 && (q < 9 || (q == 9 && r < one_decimal_below)) {
        let tenths = (r * 10 + div / 2) / div;
        format!("{}.{}{suffix}", q + tenths / 10, tenths % 10)
    } else {
        format!("{}{suffix}", q + (r + div / 2) / div)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(port: Option<&str>) -> Netstat {
        Netstat::new(NetstatOptions { drops: true, human: true }, port)
    }

    #[test]
    fn counts_are_divided_by_1000() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.0k"),
            (1050, "1.1k"),
            (9949, "9.9k"),
            (9950, "10k"),
            (999_499, "999k"),
            (999_500, "1.0M"),
            (1_488_095, "1.5M"),
            (9_548_168, "9.5M"),
            (14_880_952, "15M"),
            (999_499_999, "999M"),
            (999_500_000, "1.0G"),
            (2_000_000_000_000, "2.0T"),
            (3_000_000_000_000_000, "3.0P"),
        ] {
            assert_eq!(humanize(n, Unit::Count), text, "{n}");
        }
    }

    #[test]
    fn bytes_are_divided_by_1024() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.0K"),
            (1024, "1.0K"),
            (9 * 1024 + 972, "9.9K"),
            (9 * 1024 + 973, "10K"),
            (892_857_120, "851M"),
            (999 * 1024 + 511, "999K"),
            (999 * 1024 + 512, "1.0M"),
            (1_319_413_953, "1.2G"),
        ] {
            assert_eq!(humanize(n, Unit::Bytes), text, "{n}");
        }
    }

    proptest! {
        #[test]
        fn no_number_takes_more_than_four_characters(n in 0..999_500_000_000_000_000u64) {
            for unit in [Unit::Count, Unit::Bytes] {
                prop_assert!(humanize(n, unit).len() <= 4, "{}", humanize(n, unit));
            }
        }

        #[test]
        fn larger_numbers_never_look_smaller(n in any::<u64>()) {
            let value = |text: String| {
                let scale = text.find(|c: char| c.is_ascii_alphabetic()).map_or(0, |at| {
                    1 + "kMGTP".find(&text[at..].replace('K', "k")).unwrap()
                });
                let digits: f64 = text.trim_end_matches(char::is_alphabetic).parse().unwrap();
                digits * 1000f64.powi(scale as i32)
            };
            prop_assert!(value(humanize(n, Unit::Count)) <= value(humanize(n.saturating_add(n / 4), Unit::Count)));
        }
    }

    #[test]
    fn the_header_is_the_originals() {
        let (first, second) = (
            "            input        (Total)           output\n",
            "   packets  errs idrops      bytes    packets  errs      bytes colls",
        );
        assert_eq!(all(None).header(), format!("{first}{second} drops\n"));
        let plain = Netstat::new(NetstatOptions::default(), None);
        assert_eq!(plain.header(), format!("{first}{second}\n"));
    }

    #[test]
    fn one_ports_name_takes_the_totals_place() {
        let header = all(Some("wan.100")).header();
        assert_eq!(header.lines().next().unwrap(), "            input        wan.100           output");
        let long = all(Some("a-very-long-port-name")).header();
        assert_eq!(long.lines().next().unwrap(), "            input a-very-long-port-name           output");
    }

    #[test]
    fn a_row_is_the_originals() {
        let after = PortTotals {
            rx_packets: 5_924_000,
            rx_bytes: 5_924_000 * 60,
            tx_packets: 5_924_000,
            tx_bytes: 5_924_000 * 60,
            ..Default::default()
        };
        assert_eq!(
            all(None).row(&PortTotals::default(), &after),
            "      5.9M     0     0       339M       5.9M     0       339M     0     0 \n"
        );
        let mut plain = Netstat::new(NetstatOptions::default(), None);
        assert_eq!(
            plain.row(&PortTotals::default(), &after),
            "   5924000     0     0  355440000    5924000     0  355440000     0\n"
        );
    }

    #[test]
    fn the_published_figures_come_out_as_they_were_printed() {
        // packets, errs, idrops, bytes per packet, packets out, drops; the row's words.
        for (taken, errs, idrops, bytes_in, out, drops, words) in [
            (4_800_000u64, 0, 0, 527_433_728u64, 4_800_000, 0, "4.8M 0 0 503M 4.8M 0 503M 0 0"),
            (5_100_000, 0, 0, 562_036_736, 5_100_000, 0, "5.1M 0 0 536M 5.1M 0 536M 0 0"),
            (5_800_000, 3_300, 0, 636_485_632, 5_800_000, 0, "5.8M 3.3k 0 607M 5.8M 0 607M 0 0"),
            (
                8_865_000,
                0,
                2_900_000,
                1_294_150_000,
                8_400_000,
                465_000,
                "12M 0 2.9M 1.2G 8.4M 0 881M 0 465k",
            ),
        ] {
            let after = PortTotals {
                rx_packets: taken,
                rx_errors: errs,
                rx_dropped: idrops,
                rx_bytes: bytes_in,
                tx_packets: out,
                tx_bytes: if out == taken { bytes_in } else { 923_795_456 },
                tx_dropped: drops,
                ..Default::default()
            };
            let row = all(None).row(&PortTotals::default(), &after);
            assert_eq!(row.split_whitespace().collect::<Vec<_>>().join(" "), words);
        }
    }

    #[test]
    fn packets_in_include_those_lost_before_a_worker_saw_them() {
        let after = PortTotals { rx_packets: 7, rx_dropped: 3, ..Default::default() };
        let row = all(None).row(&PortTotals::default(), &after);
        assert_eq!(row.split_whitespace().take(3).collect::<Vec<_>>(), ["10", "0", "3"]);
    }

    #[test]
    fn the_header_comes_again_after_21_rows() {
        let mut view = all(None);
        let still = PortTotals::default();
        for n in 1..=64 {
            let text = view.row(&still, &still);
            assert_eq!(text.starts_with(&view.header()), n == 22 || n == 43 || n == 64, "row {n}");
            assert!(text.ends_with(" 0     0 \n"));
        }
    }

    #[test]
    fn a_row_is_a_difference_and_never_negative() {
        let (before, after) = (
            PortTotals { rx_packets: 1000, tx_packets: 5, ..Default::default() },
            PortTotals { rx_packets: 1001, tx_packets: 4, ..Default::default() },
        );
        let row = all(None).row(&before, &after);
        let words: Vec<_> = row.split_whitespace().collect();
        assert_eq!((words[0], words[4]), ("1", "0"));
    }
}
