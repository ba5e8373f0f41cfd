//! The manual page of the configuration has every key of the schema and no other.

use std::{path::Path, process::Command};

use sweepd::{config::schema, forward::verdict::Verdict};

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("man").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// The keys under each heading, in the page's order.
fn keys(page: &str) -> Vec<(String, Vec<String>)> {
    let mut sections: Vec<(String, Vec<String>)> = Vec::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix(".Ss ") {
            sections.push((heading.trim_end_matches("\\&").into(), Vec::new()));
        } else if line.starts_with(".Sh ") {
            sections.push((String::new(), Vec::new()));
        } else if let (Some(key), Some(section)) = (line.strip_prefix(".It Va "), sections.last_mut()) {
            section.1.push(key.into());
        }
    }
    sections.retain(|(heading, _)| !heading.is_empty());
    sections
}

#[test]
fn the_page_has_the_keys_of_the_schema_in_its_order() {
    let expected: Vec<(String, Vec<String>)> = schema::ALL
        .iter()
        .map(|section| {
            let heading = match section.name {
                "route.via" => "Entries of via".to_owned(),
                name if section.list => format!("[[{name}]]"),
                name => format!("[{name}]"),
            };
            (heading, section.keys.iter().map(|key| (*key).to_owned()).collect())
        })
        .collect();
    assert_eq!(keys(&page("sweepd.toml.5")), expected);
}

#[test]
fn the_page_names_the_default_files_and_every_optional_keys_default() {
    let page = page("sweepd.toml.5");
    assert!(page.contains(sweepd::config::DEFAULT_FILE) && page.contains(sweepd::config::RUNTIME_DIR));
    for entry in page.split("\n.It Va ").skip(1) {
        let key = entry.lines().next().unwrap();
        let entry = entry.split("\n.Ss ").next().unwrap();
        let given = ["address", "mac", "port", "in", "protocol", "to"].contains(&key);
        let told =
            ["Default", "the default", "Must be given", "default "].iter().any(|word| entry.contains(word));
        assert!(told || given, "{key} has no default");
    }
}

#[test]
fn the_protocols_page_has_every_verdict() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/control-protocol.md");
    let page = std::fs::read_to_string(path).unwrap();
    for verdict in Verdict::ALL {
        let row = format!("| `{}` | {} |", verdict.name(), verdict.about());
        assert!(page.contains(&row), "docs/control-protocol.md lacks {row:?}");
    }
}

#[test]
fn the_live_counters_page_has_every_option_and_every_key() {
    let page = page("sweepd-stat.8");
    let help = Command::new(env!("CARGO_BIN_EXE_sweepd")).args(["stat", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let options: Vec<&str> = help
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix('-'))
        .map(|option| option.split([' ', ',']).next().unwrap())
        .collect();
    assert!(options.len() >= 8, "{help}");
    for option in options {
        let item = match option.strip_prefix('-') {
            Some(long) => format!("\n.It Fl Fl {long}"),
            None => format!("\n.It Fl {option}"),
        };
        assert!(page.contains(&item), "no {item:?}");
    }
    for key in ["time", "seconds", "port", "rx_packets", "rx_dropped", "tx_bytes", "tx_dropped"] {
        assert!(page.contains(key), "no {key}");
    }
}

#[test]
fn the_pages_are_good_mdoc_as_far_as_mandoc_is_here_to_say_so() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("man");
    let pages = ["sweepd.8", "sweepd-stat.8", "sweepd.toml.5"].map(|page| dir.join(page));
    match Command::new("mandoc").args(["-Tlint", "-Wwarning"]).args(pages).output() {
        Ok(out) => assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout)),
        Err(e) => eprintln!("skipped, mandoc cannot be run: {e}"),
    }
}
