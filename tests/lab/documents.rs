//! The quick start as its reader does it: the commands for Debian, as they stand in the document, in
//! a namespace with two interfaces.

use std::{fs, path::Path};

use crate::{
    needs_lab,
    net::{Lab, SWEEPD, sh, wait_for},
};

/// The commands and the configuration between two headings of a document.
fn section(document: &str, heading: &str) -> (Vec<String>, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(document);
    let text = fs::read_to_string(path).unwrap();
    let start = text.find(heading).unwrap_or_else(|| panic!("{document} has no {heading}"));
    let section = text[start + heading.len()..].split("\n## ").next().unwrap().to_owned();
    let (mut commands, mut config, mut in_config) = (Vec::new(), String::new(), false);
    for line in section.lines() {
        match line.trim() {
            "```toml" => in_config = true,
            "```" => in_config = false,
            line if in_config => config += &format!("{line}\n"),
            // Code that belongs to a step is indented by the step's text and four more.
            command if line.starts_with("       ") && !command.is_empty() => {
                let command = command.split(" #").next().unwrap().trim();
                commands.push(command.trim_start_matches("sudo ").to_owned());
            }
            _ => {}
        }
    }
    (commands, config)
}

#[test]
fn the_quick_start_works_as_it_is_written() {
    needs_lab!();
    let (commands, config) = section("quick-start.md", "## Debian and other Linux");
    let lab = Lab::new(0);
    let hosts = [Lab::new(0), Lab::new(0)];
    // Two machines at two interfaces, with routes to each other by this one.
    for (n, host, gateway) in [(0, "192.0.2.7/24", "192.0.2.1"), (1, "198.51.100.7/24", "198.51.100.1")] {
        let (r, h) = (lab.r(), hosts[n].r());
        sh(&format!(
            "set -e
             ip -n {r} link add eth{n} type veth peer name eth0 netns {h}
             ip netns exec {h} ethtool -K eth0 tx off
             ip -n {h} addr add {host} dev eth0
             ip -n {h} link set eth0 up
             ip -n {h} route add default via {gateway}"
        ))
        .ok();
    }
    let file = lab.configuration(&format!("{config}[daemon]\nruntime_dir = {:?}\n", lab.runtime_dir()));
    let (mut router, mut done) = (None, 0);
    for command in commands {
        let mut words = command.split_whitespace();
        match words.next().unwrap() {
            "ip" => drop(lab.router(&command).ok()),
            // The service: here without a manager.
            "systemctl" if command.contains("enable") => router = Some(lab.start_configured()),
            "systemctl" | "systemd-sysusers" | "make" => continue,
            "sweepd" => {
                // These go on until they are interrupted.
                let endless = ["stat", "capture", "top"].contains(&words.next().unwrap());
                let limit = if endless { "timeout -s INT 2 " } else { "" };
                let rest = command.strip_prefix("sweepd").unwrap();
                let ran = lab.router(&format!("{limit}{SWEEPD}{rest} --config {}", file.display()));
                // timeout(1) ends with 124 when it had to interrupt.
                assert!(ran.code == 0 || endless && ran.code == 124, "{command}: {}", ran.text);
                if router.is_some() && command.contains("show") {
                    wait_for("it forwards", || hosts[0].reaches(0, "198.51.100.7"));
                }
            }
            other => panic!("{command}: nobody here knows how to test {other}"),
        }
        done += 1;
    }
    assert!(done >= 9, "{done} commands");
    let router = router.expect("it was started");
    assert!(router.verdict("forwarded") > 0);
    assert!(!hosts[0].reaches(0, "203.0.113.9"));
    router.stop();
}
