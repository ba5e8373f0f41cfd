//! `sweepd capture`: packets of the running daemon's, each with its verdict, as lines for people or as
//! pcapng for other programs.

use std::{
    cell::Cell,
    fs::File,
    io::{self, BufReader, IsTerminal, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::Path,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use pcap_file::{
    PcapError,
    pcapng::{
        Block, PcapNgReader,
        blocks::{
            enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption},
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
            interface_statistics::InterfaceStatisticsOption,
        },
    },
};
use serde_json::{Value, json};

use super::{
    Failure,
    args::CaptureArgs,
    client, complain, print_live,
    signals::{Signals, Wish},
};

mod line;

const ENDED: &str = "the daemon has ended, and the capture with it";

/// How long the daemon may take to end a capture.
const PATIENCE: Duration = Duration::from_secs(5);

/// Captures until it is interrupted, or enough packets have come.
///
/// # Errors
/// No daemon runs, it does not have what is asked for, or the file cannot be written.
pub fn capture(args: &CaptureArgs, runtime_dir: &Path) -> Result<(), Failure> {
    let to_terminal = args.write.as_deref() == Some(Path::new("-")) && io::stdout().is_terminal();
    if to_terminal {
        return Err(Failure::usage("-w - writes no text: send it to a file or a program, or leave -w out"));
    }
    let (answer, stream) = client::open(runtime_dir, &request(args))?;
    if answer["format"] != "pcapng" {
        return Err(Failure::running("the daemon captures in another format; is it of this version?"));
    }
    // Only now: a refusal leaves the file as it was.
    let copy: Option<Box<dyn Write>> = match &args.write {
        None => None,
        Some(path) if path == Path::new("-") => Some(Box::new(io::stdout())),
        Some(path) => Some(Box::new(
            File::create(path).map_err(|e| Failure::running(format!("{}: {e}", path.display())))?,
        )),
    };
    let ending = end_by_signal(stream.get_ref())?;
    let what = args.port.as_ref().map_or("every port".to_owned(), |port| format!("port {port}"));
    complain(&format!("sweepd: capturing {what}; Ctrl-C ends it"));
    let lines = copy.is_none();
    let failed = Rc::new(Cell::new(None));
    let tee = Tee { from: stream, copy, failed: failed.clone() };
    let mut tally = Tally::default();
    let result = match PcapNgReader::new(tee) {
        Ok(mut reader) => read(&mut reader, lines, &mut tally),
        Err(e) => Err(broken(&e)),
    };
    tally.summary();
    match failed.take() {
        None => {}
        Some(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
        Some(e) => return Err(Failure::running(format!("cannot write the capture: {e}"))),
    }
    match result {
        // The daemon may have no time left for the figures at the end.
        _ if ending.load(Ordering::Acquire) => Ok(()),
        Ok(()) if tally.nobody_reads || args.count == Some(tally.packets) => Ok(()),
        Ok(()) => Err(Failure::running(ENDED)),
        Err(failure) => Err(failure),
    }
}

fn request(args: &CaptureArgs) -> Value {
    let mut request = json!({ "version": client::VERSION, "command": "capture" });
    if let Some(port) = &args.port {
        request["port"] = json!(port);
    }
    if !args.verdicts.is_empty() {
        request["verdicts"] = json!(args.verdicts);
    }
    if let Some(count) = args.count {
        request["count"] = json!(count);
    }
    if let Some(snap) = args.snap {
        request["snap"] = json!(snap);
    }
    request
}

/// From now on SIGINT and SIGTERM tell the daemon that it is enough; a second one ends the program at
/// once. Gives whether one has come.
fn end_by_signal(stream: &UnixStream) -> Result<Arc<AtomicBool>, Failure> {
    let cannot = |e| Failure::running(format!("cannot listen to signals: {e}"));
    let signals = Signals::new()?;
    let stream = stream.try_clone().map_err(cannot)?;
    let ending = Arc::new(AtomicBool::new(false));
    let ends = ending.clone();
    let wait = move || {
        while let Ok(wish) = signals.wishes.recv() {
            if wish != Wish::End {
                continue;
            }
            if ends.swap(true, Ordering::AcqRel) {
                std::process::exit(1);
            }
            // The rest is still to come, and then the end. One that does not come is waited for no longer.
            let _ = stream.set_read_timeout(Some(PATIENCE));
            let _ = stream.shutdown(Shutdown::Write);
        }
    };
    thread::Builder::new().name("end".into()).spawn(wait).map_err(cannot)?;
    Ok(ending)
}

/// What is read is copied, as it stands.
struct Tee {
    from: BufReader<UnixStream>,
    copy: Option<Box<dyn Write>>,
    /// The copy cannot be written any more.
    failed: Rc<Cell<Option<io::Error>>>,
}

impl Read for Tee {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(to)?;
        if let Some(copy) = &mut self.copy
            && let Err(e) = copy.write_all(&to[..n]).and_then(|()| copy.flush())
        {
            self.failed.set(Some(e));
            return Err(io::ErrorKind::Other.into());
        }
        Ok(n)
    }
}

/// What has come.
#[derive(Default)]
struct Tally {
    packets: u64,
    lost: u64,
    /// The daemon has told the figures at the end.
    ended: bool,
    /// Nobody takes the lines any more.
    nobody_reads: bool,
}

impl Tally {
    fn summary(&self) {
        let Self { packets, lost, .. } = self;
        let s = if *packets == 1 { "" } else { "s" };
        complain(&format!("sweepd: {packets} packet{s} captured, {lost} lost for want of room"));
    }
}

/// Reads to the end; prints a line for each packet if there are to be `lines`.
fn read(reader: &mut PcapNgReader<Tee>, lines: bool, tally: &mut Tally) -> Result<(), Failure> {
    let mut names: Vec<String> = Vec::new();
    while let Some(block) = reader.next_block() {
        match block.map_err(|e| broken(&e))? {
            Block::InterfaceDescription(interface) => names.push(name(&interface)),
            Block::EnhancedPacket(packet) => {
                tally.packets += 1;
                tally.lost += lost_before(&packet);
                let port = names.get(packet.interface_id as usize).map_or("?", String::as_str);
                let text = lines.then(|| line::line(&packet, port) + "\n");
                if let Some(text) = text
                    && !print_live(&text)?
                {
                    tally.nobody_reads = true;
                    return Ok(());
                }
            }
            Block::InterfaceStatistics(statistics) => {
                if !std::mem::replace(&mut tally.ended, true) {
                    tally.lost = 0;
                }
                for option in &statistics.options {
                    if let InterfaceStatisticsOption::IsbOsDrop(lost) = option {
                        tally.lost += lost;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn name(interface: &InterfaceDescriptionBlock<'_>) -> String {
    let name = |option: &InterfaceDescriptionOption<'_>| match option {
        InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
        _ => None,
    };
    interface.options.iter().find_map(name).unwrap_or_default()
}

fn lost_before(packet: &EnhancedPacketBlock<'_>) -> u64 {
    let lost = |option: &EnhancedPacketOption<'_>| match option {
        EnhancedPacketOption::DropCount(lost) => Some(*lost),
        _ => None,
    };
    packet.options.iter().find_map(lost).unwrap_or(0)
}

fn broken(error: &PcapError) -> Failure {
    match error {
        PcapError::IoError(e) if e.kind() == io::ErrorKind::WouldBlock => {
            Failure::running("the daemon does not end the capture")
        }
        PcapError::IoError(_) | PcapError::IncompleteBuffer => Failure::running(ENDED),
        other => Failure::running(format!("the daemon sends no capture ({other}); is it of this version?")),
    }
}
