//! docs/rules.md: made from the rules and the tests that name them, so that no rule is called kept
//! without a test. `SWEEPD_WRITE_DOCS=1 cargo test --test rules` writes it anew.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::{
    differences::DIFFERENCES,
    list::{Note, RULES},
    router::Place,
};

const INTRO: &str = "# The rules of a router

Made by `SWEEPD_WRITE_DOCS=1 cargo test --test rules`; do not change it by hand.

Each rule with the tests that show it. Those of `tests/rules/` send packets through a router in three
places: the real worker between pipes (*result*), sweepd on `xdp:` ports of veth interfaces (*xdp*),
and Linux's own forwarding without any sweepd (*Linux*), which shows that the tests ask for nothing
but the rules. Those of `src/` test the function that does it.

*Kept*: every test passes, or the build fails. *Differs*: kept as the last column says; for xdp and
Linux, as the list below says. *Part*: some of the rule's tests do not run there. *Not run*: none of
them does. *Not yet*: not kept.
The tests of address translation run between pipes with one worker, two and four, and the packets of a
flow come in by all their rings in turn. Numbers from 101 are this program's own, for what is below IP.

| rule | from | what it asks | result | xdp | Linux | shown by |
|---|---|---|---|---|---|---|
";

const DIFFERENCES_INTRO: &str = "
## Where xdp and Linux differ

Each of these is expected by a test, which fails when there is no difference any more.

| where | rules | what it does |
|---|---|---|
";

const ALONE_INTRO: &str = "
## What does not run everywhere

Tests, or parts of them, that do not run on `xdp:` ports or on Linux, with the reason. VLANs on `xdp:`
ports are the configuration's sub-ports: frames come and go with their tags, and the built-in host
answers. Nothing here has shown a sub-port that is a kernel's VLAN interface.

| test | not on | reason |
|---|---|---|
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

/// A test: what it shows, where it runs besides the pipes, and why parts of it do not.
struct Test {
    name: String,
    rules: Vec<u32>,
    xdp: bool,
    linux: bool,
    alone: Vec<String>,
}

impl Test {
    fn runs(&self, place: Place) -> bool {
        if place == Place::Xdp { self.xdp } else { self.linux }
    }
}

/// The tests of this file, by what their bodies say.
fn tests_of(file: &Path) -> Vec<Test> {
    let text = std::fs::read_to_string(file).unwrap();
    let mut tests: Vec<Test> = Vec::new();
    for (rule, name) in cited(file) {
        match tests.last_mut().filter(|last| last.name == name) {
            Some(last) => last.rules.push(rule),
            None => {
                let rules = vec![rule];
                tests.push(Test { name, rules, xdp: false, linux: false, alone: Vec::new() });
            }
        }
    }
    let of_the_file =
        text.lines().find_map(|line| line.strip_prefix("//! Between pipes only: ")).map(str::to_owned);
    for test in &mut tests {
        let function = test.name.trim_matches('`').split_once("::").expect("a module").1;
        let body = text.split(&format!("fn {function}()")).nth(1).expect("its body");
        let body = body.split("\n}").next().expect("a first part");
        test.linux = body.contains("everywhere(");
        test.xdp = test.linux || body.contains("on_trunks(");
        let why = |call: &str| {
            let calls: Vec<_> = body.split(call).skip(1).collect();
            calls.into_iter().map(|rest| rest.split('"').next().expect("a reason").to_owned())
        };
        test.alone = why("alone(\"").chain(why(".tube(\"")).collect();
        test.alone.dedup();
        if let (false, Some(why)) = (test.xdp, &of_the_file) {
            test.alone.push(why.clone());
        }
        assert!(test.xdp || !test.alone.is_empty(), "{} does not say why it is alone", test.name);
    }
    tests
}

/// How a rule stands in a place besides the pipes.
fn result_in(place: Place, rule: u32, tests: &[Test]) -> &'static str {
    let mut of = tests.iter().filter(|test| test.rules.contains(&rule));
    if DIFFERENCES.iter().any(|d| d.place == place && d.rules.contains(&rule)) {
        return "differs";
    }
    let all = of.clone().all(|test| test.runs(place) && test.alone.is_empty());
    match (of.any(|test| test.runs(place)), all) {
        (false, _) => "not run",
        (true, false) => "part",
        (true, true) => "kept",
    }
}

fn tables_besides(tests: &[Test]) -> String {
    let mut text = DIFFERENCES_INTRO.to_owned();
    for difference in DIFFERENCES {
        let rules: Vec<_> = difference.rules.iter().map(u32::to_string).collect();
        let place = if difference.place == Place::Xdp { "xdp" } else { "Linux" };
        writeln!(text, "| {place} | {} | {} |", rules.join(", "), difference.what).unwrap();
    }
    text += ALONE_INTRO;
    for test in tests {
        let whole = if test.xdp { "a part of " } else { "" };
        for why in &test.alone {
            writeln!(text, "| {whole}{} | xdp, Linux | {why} |", test.name).unwrap();
        }
        if test.xdp && !test.linux {
            writeln!(text, "| {} | Linux | no kernel at hand has VLAN interfaces |", test.name).unwrap();
        }
    }
    text
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
    let shown = shown.iter().filter(|f| f.file_name() != Some("document.rs".as_ref()));
    let shown: Vec<Test> = shown.flat_map(|file| tests_of(file)).collect();
    let mut driven = std::collections::BTreeSet::new();
    for test in &shown {
        for rule in &test.rules {
            driven.insert(*rule);
            tests.entry(*rule).or_default().push(test.name.clone());
        }
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
        let [xdp, linux] = [Place::Xdp, Place::Kernel].map(|place| result_in(place, *rule, &shown));
        writeln!(text, "| {rule} | {from} | {asks} | {result} | {xdp} | {linux} | {why}{space}{by} |")
            .unwrap();
    }
    let known: Vec<u32> = RULES.iter().map(|(rule, ..)| *rule).collect();
    assert!(driven.iter().all(|rule| known.contains(rule)), "a test names a rule that the list lacks");
    assert!(known.is_sorted_by(|a, b| a < b));
    text + &tables_besides(&shown)
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
