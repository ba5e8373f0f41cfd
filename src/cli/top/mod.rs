//! `sweepd top`: a full screen in the terminal, read from the shared counters like `stat`. The
//! daemon does not know that anybody looks.

mod history;
mod screen;

use std::{
    io::IsTerminal,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use sweepd::stats::{
    cpu,
    file::{STATS_FILE, StatsError},
    read::StatsReader,
};

use super::{Failure, args::TopArgs};
use history::{History, Look};

/// How often the keyboard and the signals are looked at.
const GLANCE: Duration = Duration::from_millis(50);

/// Shows the daemon whose files are in `runtime_dir`, until `q`, a signal or an error.
///
/// # Errors
/// No daemon runs, or standard output is no terminal.
pub fn top(args: &TopArgs, runtime_dir: &Path) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() {
        return Err(Failure::usage("top needs a terminal; for a pipe there is sweepd stat"));
    }
    let path = runtime_dir.join(STATS_FILE);
    let reader = attach(&path).map_err(Failure::running)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(|e| Failure::running(format!("cannot wait for signals: {e}")))?;
    }
    // From here on a panic restores the terminal as well.
    let mut terminal = ratatui::try_init().map_err(|e| Failure::running(format!("no full screen: {e}")))?;
    let result = show(&mut terminal, &path, reader, Duration::from_secs(args.wait.into()), &stop);
    ratatui::restore();
    result.map_err(|e| Failure::running(format!("the terminal failed: {e}")))
}

/// A daemon that lives: a killed one's file is as good as none.
fn attach(path: &Path) -> Result<StatsReader, StatsError> {
    let reader = StatsReader::open(path)?;
    if reader.daemon_lives() { Ok(reader) } else { Err(StatsError::NotRunning { path: path.to_owned() }) }
}

fn show(
    terminal: &mut DefaultTerminal,
    path: &Path,
    reader: StatsReader,
    interval: Duration,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let mut reader = Some(reader);
    let mut history = History::new(interval);
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        let mut changed = now >= due;
        if changed {
            due = now + interval;
            // The next daemon is followed, with a history of its own.
            if !reader.as_ref().is_some_and(|reader| reader.is_current() && reader.daemon_lives()) {
                reader = attach(path).ok();
                if reader.is_some() {
                    history = History::new(interval);
                }
            }
            if let Some(reader) = &reader {
                history.add(look(reader), now);
            }
        }
        if event::poll(GLANCE)? {
            match event::read()? {
                Event::Key(key) if ends(&key) => return Ok(()),
                // Another size, or a key that means nothing.
                _ => changed = true,
            }
        }
        if changed {
            terminal.draw(|frame| screen::draw(frame, &history, reader.is_some()))?;
        }
    }
    Ok(())
}

fn look(reader: &StatsReader) -> Look {
    Look {
        pid: reader.pid(),
        names: reader.ports().to_vec(),
        verdicts: reader.verdicts().iter().map(|(name, _)| name.clone()).collect(),
        ports: reader.snapshot(),
        times: cpu::times(reader.pid()).into_iter().collect(),
    }
}

/// q, Esc, Ctrl-C, which is no signal while the terminal is raw.
fn ends(key: &KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind != KeyEventKind::Release
        && match key.code {
            KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
            KeyCode::Char('c') => control,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_control_c_end_it_and_nothing_else() {
        let key = |code| ends(&KeyEvent::new(code, KeyModifiers::NONE));
        assert!(key(KeyCode::Char('q')) && key(KeyCode::Esc));
        assert!(!key(KeyCode::Char('c')) && !key(KeyCode::Enter));
        assert!(ends(&KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }
}
