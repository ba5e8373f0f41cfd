//! docs/rules.md: made from the rules and the tests that name them, so that no rule is called kept
//! without a test. `SWEEPD_WRITE_DOCS=1 cargo test --test rules` writes it anew.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::list::{Note, RULES};

const INTRO: &str = "# The rules of a router

Made by `SWEEPD_WRITE_DOCS=1 cargo test --test rules`; do not change it by hand.

Each rule with the tests that show it. Those of `tests/rules/` send packets through the real worker;
those of `src/` test the function that does it. *Kept*: every test passes, or the build fails.
*Differs*: kept as the last column says. *Not yet*: not kept. Not listed: VLAN sub-ports and address
translation, which are not built yet.

| rule | from | what it asks | result | shown by |
|---|---|---|---|---|
";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Rust files below a folder, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn numbers(text: &str) -> Vec<u32> {
    text.split(',')
        .map(|n| n.trim().parse().unwrap_or_else(|_| panic!("a rule's number, not {n:?}")))
        .collect()
}

/// The name of the function that this line begins, if it does.
fn function(line: &str) -> Option<&str> {
    line.trim().strip_prefix("fn ").and_then(|rest| rest.split('(').next())
}

/// The tests of this file that name rules in the first line of their documentation; every test
/// must.
fn cited(file: &Path) -> Vec<(u32, String)> {
    let text = std::fs::read_to_string(file).unwrap();
    let module = file.file_stem().unwrap().to_str().unwrap();
    let (mut rules, mut is_test, mut in_doc, mut found) = (Vec::new(), false, false, Vec::new());
    for line in text.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("/// ") {
            let named = doc.strip_prefix("Rule ").or_else(|| doc.strip_prefix("Rules "));
            if let (false, Some((list, _))) = (in_doc, named.and_then(|rest| rest.split_once('.'))) {
                rules = numbers(list);
            }
            in_doc = true;
            continue;
        }
        in_doc = false;
        is_test |= line == "#[test]";
        if let Some(name) = function(line.strip_prefix("pub ").unwrap_or(line)) {
            assert!(!is_test || !rules.is_empty(), "{module}::{name} names no rule");
            let of = std::mem::take(&mut rules).into_iter().filter(|_| is_test);
            found.extend(of.map(|rule| (rule, format!("`{module}::{name}`"))));
            is_test = false;
        }
    }
    found
}

/// The tests of this file that have rules' numbers in their names: `rule_23_24_...`.
fn named(file: &Path) -> Vec<(u32, String)> {
    let text = std::fs::read_to_string(file).unwrap();
    let place = file.strip_prefix(root()).unwrap().display();
    let mut found = Vec::new();
    for name in text.lines().filter_map(function).filter(|name| name.starts_with("rule_")) {
        let rules = name.split('_').skip(1).map_while(|part| part.parse().ok());
        found.extend(rules.map(|rule| (rule, format!("{place} `{name}`"))));
    }
    found
}

fn document() -> String {
    let mut tests: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let shown = files(&root().join("tests/rules"));
    let shown = shown.iter().filter(|f| f.file_name() != Some("document.rs".as_ref())).flat_map(|f| cited(f));
    let mut driven = std::collections::BTreeSet::new();
    for (rule, test) in shown {
        driven.insert(rule);
        tests.entry(rule).or_default().push(test);
    }
    for (rule, test) in files(&root().join("src")).iter().flat_map(|f| named(f)) {
        tests.entry(rule).or_default().push(test);
    }
    let mut text = INTRO.to_owned();
    for (rule, from, asks, note) in RULES {
        let by = tests.get(rule).map_or(String::new(), |tests| tests.join("<br>"));
        let has_test = driven.contains(rule);
        let (result, why) = match note {
            Note::Kept => ("kept", ""),
            Note::Differs(why) => ("differs", *why),
            Note::NotYet(why) => ("not yet", *why),
        };
        assert_eq!(has_test, !matches!(note, Note::NotYet(_)), "rule {rule} is said to be {result}");
        let space = if why.is_empty() || by.is_empty() { "" } else { "<br>" };
        writeln!(text, "| {rule} | {from} | {asks} | {result} | {why}{space}{by} |").unwrap();
    }
    let known: Vec<u32> = RULES.iter().map(|(rule, ..)| *rule).collect();
    assert!(driven.iter().all(|rule| known.contains(rule)), "a test names a rule that the list lacks");
    assert!(known.is_sorted_by(|a, b| a < b));
    text
}

#[test]
fn the_document_is_what_the_tests_say() {
    let (file, now) = (root().join("docs/rules.md"), document());
    if std::env::var_os("SWEEPD_WRITE_DOCS").is_some() {
        std::fs::write(&file, &now).unwrap();
    }
    let there = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(there == now, "docs/rules.md is out of date: SWEEPD_WRITE_DOCS=1 cargo test --test rules");
}
