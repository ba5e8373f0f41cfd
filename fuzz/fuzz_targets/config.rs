//! Any text as a configuration: it is read or refused, and a refusal says something.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(errors) = sweepd::config::parse(text, "fuzz.toml") {
        assert!(!errors.to_string().is_empty());
    }
});
