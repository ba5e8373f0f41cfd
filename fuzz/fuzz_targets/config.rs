//! Any text as a configuration: it is read or refused, and a refusal says something.

/// Any bytes that are text.
pub fn any(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Err(errors) = sweepd::config::parse(text, "fuzz.toml") {
        assert!(!errors.to_string().is_empty());
    }
}
