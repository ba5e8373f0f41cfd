//! The command line: reads it, starts the command, and turns what comes back into an exit code.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
