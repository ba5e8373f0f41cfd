//! What can be wrong: each time one clear line, the right exit code, and nothing left behind.

use std::fs;

use crate::{
    needs_lab,
    net::{Lab, Router, sh, wait_for},
};

const PORT: &str = "[[port]]\nname = \"p1\"\ndevice = \"xdp:p1\"\n";

/// Starts what cannot start. Gives its one line.
#[track_caller]
fn refused(lab: &Lab, prefix: &str, code: i32) -> String {
    let mut router = lab.launch(prefix);
    assert_eq!(router.wait(), Some(code), "{}", router.log());
    let log = router.log();
    // Above may be lines of the log; they begin with their time.
    let lines: Vec<_> = log.lines().filter(|line| !line.starts_with('[')).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(!lines[0].contains("panicked"), "{log}");
    println!("{}", lines[0]);
    assert!(!lab.has_program("p1") && !lab.has_program("p2"), "a program is left behind");
    if let Ok(dir) = fs::read_dir(lab.runtime_dir()) {
        let left: Vec<_> = dir.map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
    lines[0].replace(lab.dir.path().to_str().unwrap(), "DIR")
}

#[test]
fn a_bad_configuration_is_exit_code_2() {
    needs_lab!();
    let lab = Lab::new(2);
    lab.configuration("[[port]]\nname = \"p1\"\ndevcie = \"xdp:p1\"\n");
    let line = refused(&lab, "", 2);
    assert!(line.starts_with("DIR/sweepd.toml:3: port.devcie: unknown key"), "{line}");
    lab.configuration(&format!("[daemon]\ncpus = [4000]\nruntime_dir = {:?}\n{PORT}", lab.runtime_dir()));
    let line = refused(&lab, "", 2);
    assert!(line.contains("daemon.cpus: there is no core 4000"), "{line}");
    fs::remove_file(lab.dir.path().join("sweepd.toml")).unwrap();
    let line = refused(&lab, "", 2);
    assert!(line.contains("DIR/sweepd.toml") && line.contains("No such file"), "{line}");
}

#[test]
fn a_device_that_cannot_be_opened_is_exit_code_1() {
    needs_lab!();
    let lab = Lab::new(2);
    lab.configure("", "[[port]]\nname = \"p9\"\ndevice = \"xdp:p9\"\n");
    let line = refused(&lab, "", 1);
    assert!(line.contains("xdp:p9: no such interface"), "{line}");
    lab.configure("", "");
    lab.router("ip link set p2 down").ok();
    let line = refused(&lab, "", 1);
    assert_eq!(line, "sweepd: xdp:p2: the interface is down; `ip link set p2 up`");
    lab.router("ip link set p2 up").ok();
    lab.start().stop();
}

#[test]
fn without_permission_it_says_which_is_missing() {
    needs_lab!();
    let lab = Lab::new(2);
    lab.configure("", "");
    // Others may read the configuration, and make the runtime directory.
    sh(&format!("chmod 777 {}", lab.dir.path().display())).ok();
    let line = refused(&lab, "setpriv --reuid=65534 --regid=65534 --clear-groups", 1);
    assert!(line.contains("not permitted") && line.contains("CAP_NET_RAW"), "{line}");
    lab.start().stop();
}

#[test]
fn a_runtime_directory_that_cannot_be_made_is_named() {
    needs_lab!();
    let lab = Lab::new(2);
    fs::write(lab.dir.path().join("file"), "").unwrap();
    let dir = lab.dir.path().join("file/run");
    lab.configuration(&format!("[daemon]\nruntime_dir = {dir:?}\n{PORT}"));
    let line = refused(&lab, "", 1);
    assert!(line.contains("DIR/file/run") && line.contains("[daemon] runtime_dir"), "{line}");
}

#[test]
fn a_full_disk_is_told_at_the_start() {
    needs_lab!();
    let lab = Lab::new(2);
    lab.configure("", "");
    // A file system of one page, in a mount namespace that ends with the process.
    fs::create_dir(lab.runtime_dir()).unwrap();
    let script = lab.dir.path().join("tiny");
    let text = format!("#!/bin/sh\nmount -t tmpfs -o size=4k none {:?} && exec \"$@\"\n", lab.runtime_dir());
    fs::write(&script, text).unwrap();
    sh(&format!("chmod +x {}", script.display())).ok();
    let line = refused(&lab, script.to_str().unwrap(), 1);
    assert!(line.contains("DIR/run/stats: no room for") && line.contains("runtime_dir"), "{line}");
    lab.start().stop();
}

/// The lines of the log since the start that are neither INFO nor the start's warnings.
fn complaints(router: &Router) -> Vec<String> {
    let log = router.log();
    let since = log.split(": forwarding\n").nth(1).unwrap_or_default();
    since.lines().filter(|line| !line.contains(" INFO ")).map(str::to_owned).collect()
}

#[test]
fn a_device_that_vanishes_takes_only_its_own_packets() {
    needs_lab!();
    let lab = Lab::new(3);
    let router = lab.start();
    lab.host(1, "ping -c 1 -W 2 10.0.2.2").ok();
    lab.host(1, "ping -c 1 -W 2 10.0.3.2").ok();
    lab.router("ip link del p2").ok();
    wait_for("it is noticed", || !complaints(&router).is_empty());
    // Whoever wants to go there is told, and everybody else goes on.
    let text = lab.host(1, "ping -c 1 -W 2 10.0.2.2").text;
    assert!(text.contains("Unreachable"), "{text}");
    lab.host(1, "ping -c 2 -i 0.2 -W 2 10.0.3.2").ok();
    lab.host(1, "ping -c 2 -i 0.2 -W 2 fd00:3::2").ok();
    let lines = complaints(&router);
    println!("{}", lines.join("\n"));
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("port p2: its device xdp:p2 is gone"), "{lines:#?}");
    router.adds_up();
    // Without any port it waits for one to come back.
    lab.router("ip link del p1").ok();
    lab.router("ip link del p3").ok();
    wait_for("all are gone", || complaints(&router).len() == 3);
    assert!(!router.log().contains("panicked"), "{}", router.log());
    router.stop();
    assert_eq!(fs::read_dir(lab.runtime_dir()).unwrap().count(), 0, "files are left");
}
