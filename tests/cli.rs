//! The binary as its users meet it: exit codes, messages, help.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixListener,
    path::Path,
    process::{Command, Output, Stdio},
};

const GOOD: &str =
    "[[port]]\nname = \"wan\"\ndevice = \"pipe:wan\"\n\n[[route]]\nto = \"0.0.0.0/0\"\nport = \"wan\"\n";

fn sweepd(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sweepd")).args(args).output().unwrap()
}

/// Exit code, standard output, standard error.
fn ran(args: &[&str]) -> (i32, String, String) {
    let out = sweepd(args);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
}

/// Runs `check` on a file with this text.
fn check(text: impl AsRef<[u8]>) -> (i32, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sweepd.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let (code, out, err) = ran(&["check", "--config", path]);
    (code, out.replace(path, "FILE"), err.replace(path, "FILE"))
}

#[test]
fn alone_it_prints_help_and_that_is_bad_usage() {
    let (code, out, err) = ran(&[]);
    assert_eq!((code, out.as_str()), (2, ""));
    for command in ["run", "check", "stat", "show", "reload", "replay", "demo"] {
        assert!(err.contains(&format!("\n  {command} ")), "{command}: {err}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    let all: &[&[&str]] = &[
        &[],
        &["run"],
        &["check"],
        &["stat"],
        &["show"],
        &["show", "routes"],
        &["reload"],
        &["replay"],
        &["demo"],
    ];
    for command in all {
        let (code, out, err) = ran(&[command, &["--help"][..]].concat());
        assert_eq!((code, err.as_str()), (0, ""), "{command:?}");
        assert!(out.contains("Usage: sweepd") && out.contains("--config <FILE>"), "{command:?}: {out}");
    }
    let (code, out, _) = ran(&["--version"]);
    assert_eq!((code, out), (0, format!("sweepd {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn bad_usage_is_one_line_and_exit_code_2() {
    let all: &[(&[&str], &str)] = &[
        (&["chekc"], "'check'"),
        (&["show"], "usage: sweepd show"),
        (&["show", "prots"], "'ports'"),
        (&["show", "routes", "10.0.0"], "10.0.0"),
        (&["show", "ports", "10.0.0.1"], "10.0.0.1"),
        (&["check", "--confg", "x"], "'--config'"),
        (&["stat", "-w", "0"], "0 is not in 1..=86400"),
        (&["stat", "-w", "x"], "invalid digit"),
        (&["stat", "-q", "0"], "0 is not in 1.."),
        (&["replay"], "--in <PORT=FILE>"),
        (&["replay", "--in", "x.pcap"], "lan=in.pcap"),
        (&["check", "extra"], "'extra'"),
    ];
    for (args, part) in all {
        let (code, out, err) = ran(args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
        if *args != ["show"] {
            assert_eq!(err.lines().count(), 1, "{args:?}: {err}");
            assert!(err.starts_with("sweepd: ") && err.contains(part), "{args:?}: {err}");
        }
    }
}

#[test]
fn a_good_file_is_summed_up() {
    assert_eq!(check(GOOD), (0, "FILE: ok, 1 port, 1 route\n".into(), String::new()));
}

#[test]
fn a_doubtful_file_is_good_with_a_warning() {
    let (code, out, err) = check(GOOD.replace("\n\n", "\nmtu = 600\n\n"));
    assert_eq!((code, out.as_str()), (0, "FILE: ok, 1 port, 1 route\n"));
    assert_eq!(err, "warning: FILE:4: port.mtu: IPv6 needs 1280 at least (RFC 8200)\n");
}

#[test]
fn what_this_machine_lacks_is_a_warning_of_check() {
    let text =
        "[daemon]\ncpus = [4000]\nsocket_group = \"no-such-group\"\n[[port]]\ndevice = \"xdp:nosuch0\"\n";
    let (code, out, err) = check(text);
    // What the kernel has for express depends on the kernel.
    let (first, rest) = out.split_once('\n').unwrap();
    assert_eq!((code, first), (0, "FILE: ok, 1 port"), "{err}");
    assert!(rest.is_empty() || rest.starts_with("express: "), "{rest}");
    let lines: Vec<_> = err.lines().collect();
    assert!(lines[0].starts_with("warning: FILE: daemon.cpus: there is no core 4000; "), "{err}");
    assert!(lines[1].starts_with("warning: FILE: daemon.socket_group: there is no group"), "{err}");
    assert!(lines[2].starts_with("warning: FILE: port.device: there is no interface \"nosuch0\""), "{err}");
    assert_eq!(lines.len(), 3, "{err}");
}

#[test]
fn a_bad_file_gives_a_line_for_every_error() {
    let (code, out, err) =
        check("[[port]]\nname = \"wan\"\nmut = 1500\n[[route]]\nto = \"10.0.0.1/8\"\nvia = \"x\"\n");
    assert_eq!((code, out.as_str()), (2, ""));
    assert_eq!(
        err,
        "FILE:3: port.mut: unknown key; did you mean \"mtu\"?\n\
         FILE:5: route.to: 10.0.0.1/8 has host bits set; write 10.0.0.0/8\n\
         FILE:6: route.via: \"x\" is not an IP address; write one as \"203.0.113.1\" or \"2001:db8::1\"\n"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_one_line_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none.toml");
    let below = dir.path().join("f/g");
    // Nobody writes into it.
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::write(dir.path().join("f"), "").unwrap();
    for (path, part) in [
        (missing.as_path(), "No such file or directory; write one, or name another with --config"),
        (dir.path(), "Is a directory; name a file with --config"),
        (below.as_path(), "Not a directory"),
        (Path::new("/dev/null"), "it is no regular file; name one with --config"),
        (fifo.as_path(), "it is no regular file; name one with --config"),
    ] {
        for command in [&["check"][..], &["run"], &["replay", "--in", "wan=x"]] {
            let (code, out, err) = ran(&[command, &["--config", path.to_str().unwrap()]].concat());
            assert_eq!((code, out.as_str()), (2, ""), "{path:?}: {err}");
            assert_eq!(err.lines().count(), 1, "{path:?}: {err}");
            assert!(err.starts_with(&path.display().to_string()) && err.contains(part), "{path:?}: {err}");
        }
    }
    for command in [&["stat"][..], &["reload"], &["show", "ports"]] {
        let (code, _, err) = ran(&[command, &["--config", missing.to_str().unwrap()]].concat());
        assert_eq!((code, err.lines().count()), (2, 1), "{command:?}: {err}");
    }
}

#[test]
fn an_unreadable_file_says_so() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, GOOD).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o0)).unwrap();
    let (code, out, err) = ran(&["check", "--config", path.to_str().unwrap()]);
    // Root reads everything.
    if nix::unistd::geteuid().is_root() {
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
    } else {
        assert_eq!(code, 2);
        assert!(err.contains("Permission denied; run as root"), "{err}");
    }
}

#[test]
fn bytes_that_are_no_text_are_named_by_their_line() {
    let (code, _, err) = check(b"[[port]]\nname = \"\xff\"\n");
    assert_eq!((code, err.as_str()), (2, "FILE:2: a byte that is not UTF-8; save the file as UTF-8\n"));
    let (code, _, err) = check(b"\0\0\0");
    assert_eq!((code, err.lines().count()), (2, 1), "{err}");
}

#[test]
fn without_a_daemon_the_commands_that_need_one_say_how_to_start_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let text = format!("[daemon]\nruntime_dir = \"{}\"\n{GOOD}", dir.path().display());
    std::fs::write(&path, text).unwrap();
    for command in [&["stat"][..], &["show", "tables"], &["show", "ports", "--json"], &["reload"]] {
        let (code, out, err) = ran(&[command, &["--config", path.to_str().unwrap()]].concat());
        assert_eq!((code, out.as_str(), err.lines().count()), (1, "", 1), "{command:?}: {err}");
        assert!(err.contains("sweepd run"), "{command:?}: {err}");
    }
}

/// A daemon that gives one answer, and the configuration that leads to it.
fn with_daemon(answer: &'static str, command: &[&str]) -> (String, (i32, String, String)) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    // The rest of the file may be wrong meanwhile.
    let text = format!("[daemon]\nruntime_dir = \"{}\"\n[[prot]]\n", dir.path().display());
    std::fs::write(&path, text).unwrap();
    let listener = UnixListener::bind(dir.path().join("control.sock")).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        line
    });
    let result = ran(&[command, &["--config", path.to_str().unwrap()]].concat());
    (server.join().unwrap(), result)
}

#[test]
fn show_asks_the_daemon_and_prints_its_json_as_it_is() {
    let answer = "{\"version\":1,\"ok\":true,\"data\":{\"generation\":42,\"fib4_prefixes\":3}}\n";
    let (asked, ran) = with_daemon(answer, &["show", "tables", "--json"]);
    assert_eq!(asked, "{\"version\":1,\"command\":\"show\",\"what\":\"tables\"}\n");
    assert_eq!(ran, (0, "{\"generation\":42,\"fib4_prefixes\":3}\n".into(), String::new()));
    let (_, ran) = with_daemon(answer, &["show", "tables"]);
    assert_eq!(ran.1, "what           value\ngeneration        42\nfib4 prefixes      3\n");
    let (asked, _) = with_daemon(answer, &["show", "routes", "10.0.0.1"]);
    let expected = "{\"version\":1,\"command\":\"show\",\"what\":\"routes\",\"address\":\"10.0.0.1\"}\n";
    assert_eq!(asked, expected);
}

#[test]
fn a_refused_reload_prints_the_lines_of_the_configuration() {
    let refused = "{\"version\":1,\"ok\":false,\"error\":\"f:1: a\\nf:2: b\",\"configuration\":true}\n";
    let (asked, ran) = with_daemon(refused, &["reload"]);
    assert_eq!(asked, "{\"version\":1,\"command\":\"reload\"}\n");
    assert_eq!(ran, (2, String::new(), "f:1: a\nf:2: b\n".into()));
    let fine = "{\"version\":1,\"ok\":true,\"data\":{\"warnings\":[\"f:3: c\"]}}\n";
    assert_eq!(with_daemon(fine, &["reload"]).1, (0, "reloaded\n".into(), "warning: f:3: c\n".into()));
}

#[test]
fn a_reader_that_goes_away_is_no_error_and_a_full_disk_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, GOOD).unwrap();
    for args in [&["check", "--config", path.to_str().unwrap()][..], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let out = Command::new(env!("CARGO_BIN_EXE_sweepd")).args(args).stdout(writer).output().unwrap();
        assert_eq!((out.status.code(), out.stderr.as_slice()), (Some(0), &b""[..]), "{args:?}");
    }
    if let Ok(full) = std::fs::File::options().write(true).open("/dev/full") {
        let out = Command::new(env!("CARGO_BIN_EXE_sweepd"))
            .args(["check", "--config", path.to_str().unwrap()])
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let err = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{err}");
        assert_eq!(err, "sweepd: cannot write to standard output: No space left on device\n");
    }
}

#[test]
fn replay_refuses_ports_that_the_configuration_does_not_have() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, GOOD).unwrap();
    let path = path.to_str().unwrap();
    let (code, _, err) = ran(&["replay", "--config", path, "--in", "lan=a.pcap"]);
    assert_eq!((code, err), (2, format!("sweepd: {path} has no port \"lan\"; it has wan\n")));
    let (code, _, err) = ran(&["replay", "--config", path, "--in", "wan=a", "--in", "wan=b"]);
    assert_eq!((code, err.as_str()), (2, "sweepd: port \"wan\" has two captures one way; give one\n"));
}
