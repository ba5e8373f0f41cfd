//! The log: lines on standard error, for people at a terminal, for the journal and for syslog.

use std::io::Write;

use env_logger::{Builder, Env, Target};
use log::{Level, LevelFilter, Record};
use sweepd::plain::plain;

/// Starts logging, at `info` unless `RUST_LOG` says otherwise.
pub fn start() {
    let mut builder = Builder::from_env(Env::default().default_filter_or("info"));
    builder.target(Target::Stderr);
    // It tells of every write near the configuration: a log there would tell of itself.
    builder.filter_module("notify", LevelFilter::Info);
    // systemd sets it when standard error is the journal's, which has its own clock.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        builder.format(|out, record| writeln!(out, "{}", journal_line(record)));
    } else {
        builder.format(|out, record| {
            let (time, level) = (out.timestamp_millis(), record.level());
            let style = out.default_level_style(level);
            let text = record.args().to_string();
            writeln!(out, "[{time} {style}{level:<5}{style:#}] {}", plain(&text))
        });
    }
    // A second start, in a test, changes nothing.
    let _ = builder.try_init();
}

/// A line with its syslog priority (RFC 5424 6.2.1) in front, as the journal understands it.
fn journal_line(record: &Record<'_>) -> String {
    let priority = match record.level() {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    format!("<{priority}>{}", plain(&record.args().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_the_journal_begins_with_its_priority() {
        let record = Record::builder().level(Level::Warn).args(format_args!("port wan is down")).build();
        assert_eq!(journal_line(&record), "<4>port wan is down");
        let error = std::io::Error::from_raw_os_error(libc::ENOENT);
        let args = format_args!("{error}; restart");
        assert_eq!(
            journal_line(&Record::builder().level(Level::Error).args(args).build()),
            "<3>No such file or directory; restart"
        );
    }
}
