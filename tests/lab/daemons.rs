//! Routing daemons: BIRD, and the daemons of FRR, each a process of its own in one namespace, with
//! its files in the lab's directory. None is a service of the machine's, and none writes anywhere
//! else.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::net::{Lab, SOON, is_there, sh, wait_for};

/// Where Debian has FRR's daemons.
const FRR: &str = "/usr/lib/frr";

/// Whether BIRD and FRR are there; says so when not. Unlike the lab's other tools these are never
/// required: not every machine can have them.
pub fn are_there() -> bool {
    let there = is_there("bird") && is_there("birdc") && Path::new(FRR).join("zebra").exists();
    if !there {
        eprintln!("skipped: BIRD and FRR beside sweepd, for want of Debian's packages bird2 and frr");
    }
    there
}

/// Returns from a test where there are no routing daemons, or no lab.
macro_rules! needs_daemons {
    () => {
        crate::needs_lab!();
        if !crate::daemons::are_there() {
            return;
        }
    };
}
pub(crate) use needs_daemons;

/// A daemon's process. Killed when dropped, without a word to its neighbours.
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts `command` in a namespace; what it says goes to a file with its name.
    pub fn start(lab: &Lab, namespace: &str, name: &str, command: &[&str]) -> Self {
        let log = lab.dir.path().join(format!("{name}.log"));
        let file = File::create(&log).unwrap();
        let child = Command::new("ip")
            .args(["netns", "exec", namespace])
            .args(command)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    #[track_caller]
    fn is_alive(&mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "it ended: {}", self.said());
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}:\n{}", self.log.display(), self.said());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// BIRD in one namespace.
pub struct Bird {
    daemon: Daemon,
    socket: PathBuf,
}

impl Bird {
    /// Starts it with `id` as its router's number, and `config` behind what every configuration
    /// begins with. Returns when it answers.
    #[track_caller]
    pub fn start(lab: &Lab, namespace: &str, id: &str, config: &str) -> Self {
        let text = format!("router id {id};\nlog stderr all;\nprotocol device {{ scan time 1; }}\n{config}");
        Self::start_as_it_is(lab, namespace, &text)
    }

    /// Starts it with a whole configuration.
    #[track_caller]
    pub fn start_as_it_is(lab: &Lab, namespace: &str, config: &str) -> Self {
        let name = format!("bird-{namespace}");
        let file = |ending: &str| lab.dir.path().join(format!("{name}.{ending}"));
        let (conf, socket) = (file("conf"), file("ctl"));
        fs::write(&conf, config).unwrap();
        let (conf, socket_name) = (conf.to_str().unwrap(), socket.to_str().unwrap());
        let mut daemon = Daemon::start(lab, namespace, &name, &["bird", "-f", "-c", conf, "-s", socket_name]);
        wait_for("BIRD answers", || {
            daemon.is_alive();
            sh(&format!("birdc -s {socket_name} show status")).code == 0
        });
        Self { daemon, socket }
    }

    /// Stops it where it is: it keeps its connections, and says nothing any more.
    pub fn freeze(&self) {
        kill(self.daemon.pid(), Signal::SIGSTOP).unwrap();
    }

    /// What it answers to a command of its client's.
    pub fn says(&self, command: &str) -> String {
        sh(&format!("birdc -s {} {command}", self.socket.display())).text
    }
}

/// FRR in one namespace: zebra, which puts routes into the kernel, and the daemons of protocols.
pub struct Frr {
    _daemons: Vec<Daemon>,
}

impl Frr {
    /// Starts zebra and `protocols`: `ospfd`, `bgpd` and so on, each with its configuration.
    #[track_caller]
    pub fn start(lab: &Lab, namespace: &str, protocols: &[(&str, &str)]) -> Self {
        let dir = lab.dir.path().join(format!("frr-{namespace}"));
        fs::create_dir(&dir).unwrap();
        // They run as the package's own user.
        sh(&format!("chmod 711 {} && chown frr:frr {}", lab.dir.path().display(), dir.display())).ok();
        let zebra = dir.join("zserv.api");
        let mut daemons = Vec::new();
        for (name, config) in [("zebra", "")].iter().chain(protocols) {
            let file = |ending: &str| dir.join(format!("{name}.{ending}")).to_str().unwrap().to_owned();
            fs::write(file("conf"), config).unwrap();
            let mut command = vec![format!("{FRR}/{name}"), "-f".into(), file("conf")];
            // Nobody logs in to it by TCP.
            command.extend(["-P", "0", "--log", "stdout"].map(String::from));
            command.extend(["-i".into(), file("pid"), "--vty_socket".into(), dir.to_str().unwrap().into()]);
            command.extend(["-z".into(), zebra.to_str().unwrap().into()]);
            if *name == "bfdd" {
                command.extend(["--bfdctl".into(), file("ctl")]);
            }
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            let mut daemon = Daemon::start(lab, namespace, &format!("{name}-{namespace}"), &command);
            // Its pid file and its socket come when it has read its configuration.
            wait_for(name, || {
                daemon.is_alive();
                dir.join(format!("{name}.vty")).exists() && (*name != "zebra" || zebra.exists())
            });
            daemons.push(daemon);
        }
        Self { _daemons: daemons }
    }
}

/// Waits until the router's kernel has a route to `to` by `by`, or none by it.
#[track_caller]
pub fn wait_for_route(lab: &Lab, to: &str, by: &str, there: bool) {
    let family = if to.contains(':') { "-6" } else { "-4" };
    let start = Instant::now();
    loop {
        let shown = lab.router(&format!("ip {family} route show {to}")).ok();
        if shown.contains(by) == there {
            return;
        }
        assert!(start.elapsed() < 2 * SOON, "route to {to} by {by} is to be there: {there}; but {shown:?}");
        thread::sleep(Duration::from_millis(50));
    }
}
