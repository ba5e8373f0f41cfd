//! `sweepd stat` as its users meet it: another process reads the counters of this one.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sweepd::{
    forward::verdict::Verdict,
    stats::file::{STATS_FILE, StatsFile},
};

const HEADER: &str = "            input        (Total)           output\n   \
                      packets  errs idrops      bytes    packets  errs      bytes colls drops\n";

/// A daemon's runtime directory, its configuration in it.
fn runtime_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = format!("[daemon]\nruntime_dir = \"{}\"\n", dir.path().display());
    std::fs::write(dir.path().join("f"), text).unwrap();
    dir
}

fn counters(dir: &Path) -> StatsFile {
    StatsFile::create(&dir.join(STATS_FILE), &["wan".into(), "lan".into()], 1).unwrap()
}

fn stat(dir: &Path, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_sweepd"))
        .arg("stat")
        .args(args)
        .arg("--config")
        .arg(dir.join("f"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn count(file: &StatsFile) {
    let block = file.block(0, 0);
    block.rx_packets.add(5_924_000);
    block.rx_bytes.add(5_924_000 * 60);
    block.count(Verdict::Runt, 2);
    let block = file.block(0, 1);
    block.tx_packets.add(5_924_000);
    block.tx_bytes.add(5_924_000 * 60);
}

#[test]
fn rows_come_through_a_pipe_one_by_one_as_the_original_prints_them() {
    let dir = runtime_dir();
    let file = counters(dir.path());
    count(&file);
    let mut child = stat(dir.path(), &["-w", "1", "-d", "-h", "-q", "2"]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut header = String::new();
    out.read_line(&mut header).unwrap();
    out.read_line(&mut header).unwrap();
    assert_eq!(header, HEADER);
    // The header is printed after the first look at the counters.
    count(&file);
    let mut row = String::new();
    out.read_line(&mut row).unwrap();
    assert_eq!(row, "      5.9M     2     0       339M       5.9M     0       339M     0     0 \n");
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "         0     0     0          0          0     0          0     0     0 \n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn programs_get_one_json_object_a_row() {
    let dir = runtime_dir();
    let file = counters(dir.path());
    let mut child = stat(dir.path(), &["-w", "1", "-q", "1", "--json", "-I", "wan"]);
    // The first look at the counters was before this, or the row has less; then the sum is less.
    let mut out = BufReader::new(child.stdout.take().unwrap());
    count(&file);
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    let row: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((text.lines().count(), &row["port"]), (1, &"wan".into()));
    assert!(row["rx_packets"] == 5_924_000 || row["rx_packets"] == 0, "{text}");
    assert!(row["seconds"].as_f64().unwrap() > 0.5, "{text}");
    assert!(child.wait().unwrap().success());
}

#[test]
fn ctrl_c_ends_it_at_once_and_with_success() {
    let dir = runtime_dir();
    let _file = counters(dir.path());
    let mut child = stat(dir.path(), &["-w", "3600"]);
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(out.next().is_some() && out.next().is_some());
    let start = Instant::now();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(out.next().is_none());
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_reader_that_has_enough_ends_it_at_once_and_with_success() {
    let dir = runtime_dir();
    let _file = counters(dir.path());
    let mut child = stat(dir.path(), &["-w", "3600"]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    let start = Instant::now();
    drop(out);
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), out.stderr.as_slice()), (Some(0), &b""[..]));
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn it_waits_for_the_next_daemon_and_says_so_on_standard_error() {
    let dir = runtime_dir();
    let file = counters(dir.path());
    let mut child = stat(dir.path(), &["-w", "1", "-q", "1"]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    out.read_line(&mut String::new()).unwrap();
    drop(file);
    let mut err = BufReader::new(child.stderr.take().unwrap()).lines();
    let gone = err.next().unwrap().unwrap();
    assert!(gone.contains("has ended; waiting"), "{gone}");
    let file = counters(dir.path());
    count(&file);
    let back = err.next().unwrap().unwrap();
    assert!(back.contains("new sweepd"), "{back}");
    count(&file);
    let mut row = String::new();
    out.read_line(&mut row).unwrap();
    assert_eq!(row, "   5924000     2     0  355440000    5924000     0  355440000     0\n");
    assert!(child.wait().unwrap().success());
    assert!(err.next().is_none());
}

#[test]
fn what_cannot_be_shown_is_one_line() {
    let dir = runtime_dir();
    let path = dir.path().join(STATS_FILE);
    let file = counters(dir.path());
    let mut other_version = std::fs::read(&path).unwrap();
    other_version[8] = 99;
    let refused = |args: &[&str]| {
        let out = stat(dir.path(), args).wait_with_output().unwrap();
        let err = String::from_utf8(out.stderr).unwrap();
        assert_eq!((out.stdout.as_slice(), err.lines().count()), (&b""[..], 1), "{err}");
        (out.status.code().unwrap(), err)
    };
    let (code, err) = refused(&["-I", "eth0"]);
    assert!(code == 2 && err.contains("there are: wan, lan"), "{err}");
    drop(file);
    for (bytes, hint) in [(&other_version[..], "version 99"), (b"something else", "not a counters file")] {
        std::fs::write(&path, bytes).unwrap();
        let (code, err) = refused(&[]);
        assert!(code == 1 && err.contains(hint), "{err}");
    }
}
