//! `sweepd completions`: what a shell needs to complete the command line. Packages install it.

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Failure, args::Args, print};

/// Prints the completions of `shell`.
///
/// # Errors
/// Standard output cannot be written.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    print(&text(shell))
}

fn text(shell: Shell) -> String {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "sweepd", &mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_completes_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = text(shell);
            for word in ["run", "stat", "neighbors", "config"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
    }
}
