//! The commands of `sweepd`, one file each, and what they share: arguments, exit codes, output.
//!
//! Exit codes: 0 fine, 1 failed while running, 2 bad usage or configuration. Errors are lines on
//! standard error that say what to do; a reader of standard output who goes away is no error.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory, FromArgMatches};
use sweepd::{
    config::{self, Config, ConfigErrors},
    daemon::DaemonError,
    plain::plain,
};

mod args;
mod capture;
mod check;
mod client;
mod completions;
mod demo;
mod logging;
mod manager;
mod reload;
mod replay;
mod run;
mod show;
mod signals;
mod stat;
mod table;
mod top;

use args::{Args, Command};

/// Why a command ended without success.
#[derive(Debug)]
pub struct Failure {
    /// 1 failed while running, 2 bad usage or configuration.
    pub code: u8,
    /// Lines for standard error: what is wrong; what to do.
    pub lines: Vec<String>,
}

impl Failure {
    /// Something failed while running.
    pub fn running(message: impl std::fmt::Display) -> Self {
        Self { code: 1, lines: vec![format!("sweepd: {message}")] }
    }

    /// The command line asks for something that cannot be.
    pub fn usage(message: impl std::fmt::Display) -> Self {
        Self { code: 2, lines: vec![format!("sweepd: {message}")] }
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self { code: 2, lines: errors.0.iter().map(ToString::to_string).collect() }
    }
}

impl From<DaemonError> for Failure {
    fn from(error: DaemonError) -> Self {
        Self { code: error.exit_code(), lines: vec![format!("sweepd: {error}")] }
    }
}

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    let args = match Args::command().try_get_matches().and_then(|m| Args::from_arg_matches(&m)) {
        Ok(args) => args,
        Err(e) => return usage(&e),
    };
    match dispatch(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            for line in &failure.lines {
                complain(line);
            }
            ExitCode::from(failure.code)
        }
    }
}

fn dispatch(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Run => run::run(load(args)?, &args.config),
        Command::Check => check::check(&args.config),
        Command::Stat(stat) => stat::stat(stat, &config::load_runtime_dir(&args.config)?),
        Command::Show(show) => show::show(show, &config::load_runtime_dir(&args.config)?),
        Command::Capture(capture) => capture::capture(capture, &config::load_runtime_dir(&args.config)?),
        Command::Reload => reload::reload(&config::load_runtime_dir(&args.config)?),
        Command::Replay(replay) => replay::replay(load(args)?, replay),
        Command::Demo => demo::demo(),
        Command::Top(top) => top::top(top, &config::load_runtime_dir(&args.config)?),
        Command::Completions { shell } => completions::completions(*shell),
    }
}

/// The configuration, all of it built in; starts logging, and logs the warnings.
fn load(args: &Args) -> Result<Config, Failure> {
    logging::start();
    let config = config::load_supported(&args.config)?;
    for warning in &config.warnings {
        log::warn!("{warning}");
    }
    Ok(config)
}

/// Help and the version as they are; anything else is bad usage, in one line.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader who goes away has seen enough.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => {
            complain(&one_line(&text));
            ExitCode::from(2)
        }
    }
}

/// The parser's message, tips included, in one line.
fn one_line(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "));
    let (usage, message): (Vec<_>, Vec<_>) = paragraphs
        .filter(|p| !p.is_empty() && !p.starts_with("For more information"))
        .partition(|p| p.starts_with("Usage:"));
    let message: Vec<_> = message
        .iter()
        .map(|p| p.trim_start_matches("error: ").trim_start_matches("tip: ").to_owned())
        .collect();
    let mut line = format!("sweepd: {}", message.join("; "));
    if let Some(usage) = usage.first() {
        line += &format!("; usage: {}", usage.trim_start_matches("Usage: "));
    }
    line + "; --help says more"
}

/// Writes a line to standard error.
fn complain(line: &str) {
    // If nobody takes errors, there is nobody to tell.
    let _ = writeln!(io::stderr(), "{}", plain(line));
}

/// Writes to standard output.
///
/// # Errors
/// It cannot be written, a disk is full. That the reader went away is none.
fn print(text: &str) -> Result<(), Failure> {
    print_live(text).map(|_| ())
}

/// As [`print`], for output that goes on: gives whether the reader is still there.
///
/// # Errors
/// As for [`print`].
fn print_live(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::running(format!("cannot write to standard output: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parsers_message_becomes_one_line_with_its_tip() {
        let error = Args::command().try_get_matches_from(["sweepd", "show", "prots"]).unwrap_err();
        let line = one_line(&error.render().to_string());
        assert!(line.starts_with("sweepd: unrecognized subcommand 'prots'; "), "{line}");
        assert!(line.contains("'ports'") && line.contains("; usage: sweepd show"), "{line}");
        assert!(!line.contains('\n'));
    }
}
