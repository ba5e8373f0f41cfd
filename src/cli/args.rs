//! The arguments of every command.

use std::{net::IpAddr, path::PathBuf};

use clap::{Parser, Subcommand};
use ipnet::IpNet;
use sweepd::{config::DEFAULT_FILE, forward::tap::End};

/// A router on netmap rings: routes packets on the core that received them, and follows the
/// host's own routing table.
#[derive(Parser, Debug)]
#[command(name = "sweepd", version, arg_required_else_help = true, disable_help_subcommand = true)]
pub struct Args {
    /// The configuration; it also says where the running daemon's files are
    #[arg(long, value_name = "FILE", global = true, default_value = DEFAULT_FILE)]
    pub config: PathBuf,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Route packets, in the foreground, until SIGTERM or SIGINT
    Run,
    /// Read the configuration, open nothing, and say what is wrong with it
    Check,
    /// Show a live counter, in the format of FreeBSD's netstat -w
    Stat(StatArgs),
    /// Show what the running daemon knows
    Show(ShowArgs),
    /// Copy packets of the running daemon's, each with how it ended and why
    ///
    /// A line for each packet: the time, the port it came in by, the port it left by, its verdict, its
    /// length in bytes, and who sent what to whom. With -w a capture in pcapng for tcpdump and
    /// Wireshark, with the verdict as each packet's comment. Packets are copied as they came in,
    /// before anything was changed. What an XDP program passes straight up to the host's own stack
    /// (ARP, local addresses) is not seen: tcpdump on the interface shows that.
    Capture(CaptureArgs),
    /// Have the running daemon read its configuration again
    Reload,
    /// Run captures through the configuration, without a network
    Replay(ReplayArgs),
    /// Route made-up traffic inside this process, and show the live counter
    Demo,
    /// Show ports, rates, verdicts and workers on a full screen, until q
    Top(TopArgs),
    /// Print the completions of a shell, for packages
    #[command(hide = true)]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// Arguments of `stat`.
#[derive(clap::Args, Debug)]
// -h means something else here, as it does to netstat.
#[command(disable_help_flag = true)]
pub struct StatArgs {
    /// Seconds between two rows
    #[arg(short = 'w', value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub wait: u32,
    /// Show output drops in a column of their own
    #[arg(short = 'd')]
    pub drops: bool,
    /// At most four characters a number: 1.5M
    #[arg(short = 'h')]
    pub human: bool,
    /// Show this port alone
    #[arg(short = 'I', value_name = "PORT")]
    pub port: Option<String>,
    /// Stop after so many rows
    #[arg(short = 'q', value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub rows: Option<u64>,
    /// Print one JSON object a row, for programs
    #[arg(long, conflicts_with_all = ["drops", "human"])]
    pub json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
}

/// Arguments of `capture`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  sweepd capture wan                            all that goes through the port wan
  sweepd capture --verdict no_route,denied      what finds no route or is denied, on any port
  sweepd capture lan -c 100 -w lan.pcapng       100 packets, for Wireshark
  sweepd capture lan -w - | tcpdump -r - -n     through tcpdump")]
pub struct CaptureArgs {
    /// Packets that come in or leave by this port, and its VLANs; default: by any
    pub port: Option<String>,
    /// Write a capture in pcapng to this file instead of lines; - is standard output
    #[arg(short = 'w', value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Only packets that ended so, as in `sweepd show verdicts`; repeat it, or separate by commas
    #[arg(long = "verdict", value_name = "NAME", value_delimiter = ',', value_parser = verdict)]
    pub verdicts: Vec<String>,
    /// End after so many packets
    #[arg(short = 'c', value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Copy so many bytes of each packet at most; default: all
    #[arg(short = 's', value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=16384))]
    pub snap: Option<u64>,
}

fn verdict(name: &str) -> Result<String, String> {
    match End::all().any(|end| end.name() == name) {
        true => Ok(name.into()),
        false => Err(sweepd::control::capture::no_verdict(name)),
    }
}

/// Arguments of `top`.
#[derive(clap::Args, Debug)]
pub struct TopArgs {
    /// Seconds between two looks
    #[arg(short = 'w', value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub wait: u32,
}

/// Arguments of `show`.
#[derive(clap::Args, Debug)]
pub struct ShowArgs {
    /// Print JSON, for programs
    #[arg(long, global = true)]
    pub json: bool,
    /// What to show
    #[command(subcommand)]
    pub what: What,
}

/// What to show.
#[derive(Subcommand, Debug)]
pub enum What {
    /// The ports and their counters
    #[command(alias = "port")]
    Ports,
    /// The routes in force
    #[command(alias = "route")]
    Routes {
        /// An address to look up: its route, next hop and port; or a prefix, to show the routes in it
        #[arg(value_name = "ADDRESS|PREFIX", value_parser = place)]
        at: Option<Place>,
        /// Compare the kernel's own table with what is forwarded by, and show what differs; the
        /// exit code is 1 if anything does
        #[arg(long, conflicts_with = "at")]
        diff: bool,
    },
    /// The neighbours on ports
    #[command(aliases = ["neighbor", "neighbours", "neighbour"])]
    Neighbors,
    /// The flows, those that fit: `tcp 10.0.0.7 443`
    Flows {
        /// A protocol, an address, a prefix, a port number: all that are given have to fit
        filter: Vec<String>,
    },
    /// The masquerade's mappings, those that fit, and the ports that are taken
    Masquerade {
        /// A protocol, an address, a prefix, a port number: all that are given have to fit
        filter: Vec<String>,
    },
    /// The rules and how often they fitted
    Acl,
    /// How packets ended
    #[command(alias = "verdict")]
    Verdicts {
        /// Show what has not happened yet as well
        #[arg(long)]
        all: bool,
    },
    /// The size of the tables that workers read
    Tables,
}

/// What a look at the routes is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// One destination.
    Address(IpAddr),
    /// Every route in a prefix.
    Prefix(IpNet),
}

fn place(text: &str) -> Result<Place, String> {
    if let Ok(address) = text.parse() {
        return Ok(Place::Address(address));
    }
    let prefix: Option<IpNet> = text.parse().ok();
    prefix
        .map(|prefix| Place::Prefix(prefix.trunc()))
        .ok_or_else(|| "write an address, as 198.51.100.7, or a prefix, as 198.51.100.0/24".into())
}

impl What {
    /// Its name, here and in requests.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ports => "ports",
            Self::Routes { .. } => "routes",
            Self::Neighbors => "neighbors",
            Self::Flows { .. } => "flows",
            Self::Masquerade { .. } => "masquerade",
            Self::Acl => "acl",
            Self::Verdicts { .. } => "verdicts",
            Self::Tables => "tables",
        }
    }
}

/// Arguments of `replay`.
#[derive(clap::Args, Debug)]
pub struct ReplayArgs {
    /// A capture that a port receives; repeat it for more ports
    #[arg(long = "in", value_name = "PORT=FILE", required = true, value_parser = port_file)]
    pub inputs: Vec<PortFile>,
    /// Where to write what leaves a port; repeat it for more ports
    #[arg(long = "out", value_name = "PORT=FILE", value_parser = port_file)]
    pub outputs: Vec<PortFile>,
}

/// A port and a capture file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortFile {
    /// The port's name.
    pub port: String,
    /// The capture.
    pub file: PathBuf,
}

fn port_file(text: &str) -> Result<PortFile, String> {
    match text.split_once('=') {
        Some((port, file)) if !port.is_empty() && !file.is_empty() => {
            Ok(PortFile { port: port.into(), file: file.into() })
        }
        _ => Err("write a port's name, \"=\" and a file, as lan=in.pcap".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Args {
        Args::try_parse_from(line.split_whitespace()).unwrap_or_else(|e| panic!("{line}: {e}"))
    }

    #[test]
    fn the_definition_of_the_arguments_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_configuration_goes_with_every_command_on_either_side() {
        for line in ["sweepd --config f check", "sweepd check --config f", "sweepd show ports --config f"] {
            assert_eq!(parse(line).config, PathBuf::from("f"));
        }
        assert_eq!(parse("sweepd run").config, PathBuf::from(DEFAULT_FILE));
    }

    #[test]
    fn stat_takes_the_switches_of_netstat() {
        let Command::Stat(stat) = parse("sweepd stat -w 2 -dh -I wan -q 5").command else { panic!() };
        assert_eq!((stat.wait, stat.drops, stat.human), (2, true, true));
        assert_eq!((stat.port.as_deref(), stat.rows), (Some("wan"), Some(5)));
        let Command::Stat(stat) = parse("sweepd stat").command else { panic!() };
        assert_eq!((stat.wait, stat.drops, stat.human, stat.rows), (1, false, false, None));
    }

    #[test]
    fn every_name_of_show_is_the_word_on_the_command_line() {
        for word in ["ports", "routes", "neighbors", "flows", "masquerade", "acl", "verdicts", "tables"] {
            let Command::Show(show) = parse(&format!("sweepd show {word} --json")).command else { panic!() };
            assert_eq!((show.what.name(), show.json), (word, true));
        }
        let Command::Show(show) = parse("sweepd show routes 2001:db8::1").command else { panic!() };
        assert!(matches!(show.what, What::Routes { at: Some(Place::Address(IpAddr::V6(_))), diff: false }));
        let Command::Show(show) = parse("sweepd show route 10.9.9.9/8").command else { panic!() };
        let net = "10.0.0.0/8".parse().unwrap();
        assert!(matches!(show.what, What::Routes { at: Some(Place::Prefix(found)), .. } if found == net));
        assert!(Args::try_parse_from(["sweepd", "show", "routes", "10.0.0"]).is_err());
        let Command::Show(show) = parse("sweepd show routes --diff").command else { panic!() };
        assert!(matches!(show.what, What::Routes { at: None, diff: true }));
        assert!(Args::try_parse_from(["sweepd", "show", "routes", "10.0.0.1", "--diff"]).is_err());
    }

    #[test]
    fn capture_takes_the_switches_of_tcpdump() {
        let Command::Capture(capture) =
            parse("sweepd capture wan -w - -c 5 -s 96 --verdict no_route,tx_full --verdict held").command
        else {
            panic!()
        };
        assert_eq!((capture.port.as_deref(), capture.count, capture.snap), (Some("wan"), Some(5), Some(96)));
        assert_eq!(
            (capture.verdicts.join(" "), capture.write),
            ("no_route tx_full held".into(), Some("-".into()))
        );
        let error = Args::try_parse_from(["sweepd", "capture", "--verdict", "no-route"]).unwrap_err();
        assert!(error.to_string().contains("did you mean \"no_route\"?"), "{error}");
    }

    #[test]
    fn replay_pairs_ports_with_files() {
        let Command::Replay(replay) = parse("sweepd replay --in a=x --in b=y=z --out b=o").command else {
            panic!()
        };
        let pair = |port: &str, file: &str| PortFile { port: port.into(), file: file.into() };
        assert_eq!(replay.inputs, [pair("a", "x"), pair("b", "y=z")]);
        assert_eq!(replay.outputs, [pair("b", "o")]);
        assert!(Args::try_parse_from(["sweepd", "replay", "--in", "x.pcap"]).is_err());
    }

    /// Every command and option of `command` and of those below it, as the page writes them.
    fn words(command: &clap::Command) -> Vec<String> {
        let options = command.get_arguments().filter(|arg| !arg.is_positional()).map(|arg| {
            match (arg.get_short(), arg.get_long()) {
                (_, Some(long)) => format!("Fl Fl {long}"),
                (Some(short), None) => format!("Fl {short}"),
                (None, None) => String::new(),
            }
        });
        let below = command.get_subcommands().filter(|sub| !sub.is_hide_set()).flat_map(|sub| {
            let mut list = words(sub);
            list.push(format!("Cm {}", sub.get_name()));
            list
        });
        options.chain(below).collect()
    }

    #[test]
    fn the_manual_page_explains_every_command_and_option() {
        let page = include_str!("../../man/sweepd.8");
        let mut command = Args::command();
        command.build();
        let words = words(&command);
        assert!(words.len() > 20, "{words:?}");
        for word in words {
            let explained = page.lines().any(|line| {
                let rest = line.strip_prefix(".It ").and_then(|line| line.strip_prefix(word.as_str()));
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            });
            assert!(explained, ".It {word} is missing");
        }
    }
}
