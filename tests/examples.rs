//! The configurations that come with the program are right, and use the whole schema.

use std::path::{Path, PathBuf};

use sweepd::config::{self, schema};

/// Examples that filter: `check` says what that means for the kernel's own forwarding, no more.
const FILTERS: &[&str] = &["home-gateway.toml"];

fn conf() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conf")
}

#[test]
fn every_example_passes_check() {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(conf().join("examples")).unwrap().map(|entry| entry.unwrap().path()).collect();
    // Beside them are those of routing daemons, which the lab runs.
    files.retain(|file| file.extension().is_some_and(|ending| ending == "toml"));
    files.push(conf().join("sweepd.toml.example"));
    assert!(files.len() >= 6, "{files:?}");
    for file in files {
        let config = config::load(&file).unwrap_or_else(|errors| panic!("{errors}"));
        let name = file.file_name().unwrap().to_str().unwrap();
        let refused = config.unsupported();
        assert_eq!(refused, [], "{name}");
        let told: Vec<_> =
            config.warnings.iter().filter(|warning| !warning.message.contains("on_exit")).collect();
        assert!(told.is_empty(), "{name}: {told:?}");
        assert_eq!(!config.warnings.is_empty(), FILTERS.contains(&name), "{name}: {:?}", config.warnings);
    }
}

#[test]
fn the_commented_example_shows_every_key_and_is_right_when_all_is_switched_on() {
    let text = std::fs::read_to_string(conf().join("sweepd.toml.example")).unwrap();
    let on: Vec<&str> = text
        .lines()
        .map(|line| line.strip_prefix('#').filter(|l| !l.starts_with(' ')).unwrap_or(line))
        .collect();
    let config = config::parse(&on.join("\n"), "example").unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!((config.ports.len(), config.routes.len(), config.acls.len()), (4, 3, 1));
    for section in schema::top() {
        let brackets =
            if section.list { format!("[[{}]]", section.name) } else { format!("[{}]", section.name) };
        let mut here = false;
        let mut keys = Vec::new();
        for line in &on {
            if line.starts_with('[') {
                here = *line == brackets;
            } else if let (true, Some((key, _))) = (here, line.split_once(" = ")) {
                keys.push(key);
            }
        }
        for key in section.keys {
            assert!(keys.contains(key), "{brackets} has no {key}");
        }
    }
}
