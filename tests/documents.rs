//! The documents keep to the program: their configurations are right, their commands exist, and
//! every verdict is explained somewhere.

use std::{collections::HashMap, fs, path::Path, process::Command};

use sweepd::{config, forward::verdict::Verdict};

/// The documents with commands and configurations, as name and text.
fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> = fs::read_dir(root.join("docs")).unwrap().map(|e| e.unwrap().path()).collect();
    files.push(root.join("README.md"));
    let markdown = files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "md"));
    markdown.map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap())).collect()
}

#[test]
fn every_configuration_in_a_document_is_right() {
    let mut seen = 0;
    for (name, text) in documents() {
        let mut block: Option<String> = None;
        for line in text.lines() {
            match (&mut block, line.trim()) {
                (None, "```toml") => block = Some(String::new()),
                (Some(toml), "```") => {
                    config::parse(toml, &name).unwrap_or_else(|errors| panic!("{errors}"));
                    seen += 1;
                    block = None;
                }
                (Some(toml), line) => *toml += &format!("{line}\n"),
                (None, _) => {}
            }
        }
        assert!(block.is_none(), "{name}: a block without an end");
    }
    assert!(seen >= 3, "{seen}");
}

/// The command lines in a document: indented lines and code between backticks.
fn commands(text: &str) -> Vec<String> {
    let indented = text.lines().filter(|line| line.starts_with("    ")).map(str::trim);
    let quoted =
        text.lines().filter(|line| !line.starts_with("    ")).flat_map(|l| l.split('`').skip(1).step_by(2));
    indented
        .chain(quoted)
        .map(|line| line.trim_start_matches("sudo ").split(" #").next().unwrap_or_default().trim())
        .map(|line| {
            line.split(" · ").next().unwrap_or_default().split("  ").next().unwrap_or_default().to_owned()
        })
        .filter(|line| line.starts_with("sweepd ") || line.starts_with("target/release/sweepd "))
        .collect()
}

#[test]
fn every_command_in_a_document_exists_with_its_options() {
    let mut helps: HashMap<String, String> = HashMap::new();
    let mut seen = 0;
    for (name, text) in documents() {
        for line in commands(&text) {
            let mut words = line.split_whitespace().skip(1);
            let Some(command) = words.next().filter(|w| w.starts_with(|c: char| c.is_ascii_lowercase()))
            else {
                continue;
            };
            // Several commands in one: "sweepd run|check".
            for command in command.split('|') {
                // What is shown has options of its own.
                let what = words.clone().next().filter(|_| command == "show").into_iter();
                let what = what.flat_map(|w| w.split('|').next()).filter(|w| !w.starts_with('-'));
                let command: Vec<_> = [command].into_iter().chain(what).collect();
                let help = helps.entry(command.join(" ")).or_insert_with(|| {
                    let mut run = Command::new(env!("CARGO_BIN_EXE_sweepd"));
                    let output = run.args(&command).arg("--help").output().unwrap();
                    assert!(output.status.success(), "{name}: {line:?}: there is no such command");
                    String::from_utf8(output.stdout).unwrap()
                });
                for option in words.clone().filter(|word| word.starts_with('-')) {
                    let option = option.split('=').next().unwrap_or_default();
                    assert!(help.contains(option), "{name}: {line:?}: {command:?} has no {option}");
                }
            }
            seen += 1;
        }
    }
    assert!(seen >= 20, "{seen}");
}

/// Whoever sets the clock must not move a timer: the wall clock is read to stamp what is shown or
/// sent, and for nothing else.
#[test]
fn the_wall_clock_is_read_for_stamps_alone() {
    const STAMPS: [&str; 7] = [
        "control/capture.rs",
        "control/reload.rs",
        "forward/ipv4_options.rs",
        "forward/tap.rs",
        "forward/translate/ledger.rs",
        "stats/file.rs",
        "stats/rows.rs",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|ending| ending != "rs") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            if ["SystemTime::now", "Timestamp::now", "CLOCK_REALTIME"]
                .iter()
                .any(|clock| text.contains(clock))
            {
                found.push(path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    assert_eq!(found, STAMPS, "a file that reads the wall clock, or no longer does");
}

#[test]
fn every_verdict_is_explained_by_its_symptom() {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/troubleshooting.md")).unwrap();
    for verdict in Verdict::ALL {
        assert!(text.contains(&format!("`{}`", verdict.name())), "{}", verdict.name());
    }
}
