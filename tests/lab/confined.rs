//! What the daemon gives up: as another user's, and as a service manager starts it.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use crate::{
    needs_lab,
    net::{Lab, Router, SWEEPD, sh, wait_for},
};

/// CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF.
const KEPT: u64 = 1 << 12 | 1 << 13 | 1 << 39;
const NOBODY: &str = "65534";

/// Name and status of every thread.
fn threads(router: &Router) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", router.pid())).unwrap();
    let read = |path: &Path, name| fs::read_to_string(path.join(name)).unwrap();
    let tasks = tasks.map(|task| task.unwrap().path());
    tasks.map(|task| (read(&task, "comm").trim_end().to_owned(), read(&task, "status"))).collect()
}

fn field<'s>(status: &'s str, name: &str) -> &'s str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).split_whitespace().next().unwrap()
}

fn capabilities(status: &str) -> [u64; 4] {
    ["CapEff", "CapPrm", "CapInh", "CapAmb"].map(|set| u64::from_str_radix(field(status, set), 16).unwrap())
}

/// That workers can do nothing but move packets; gives their number.
fn workers_are_confined(router: &Router) -> usize {
    let threads = threads(router);
    let workers: Vec<_> = threads.iter().filter(|(name, _)| name.starts_with("worker")).collect();
    for (name, status) in &workers {
        assert_eq!(capabilities(status), [0; 4], "{name}");
        assert_eq!((field(status, "Seccomp"), field(status, "NoNewPrivs")), ("2", "1"), "{name}");
    }
    workers.len()
}

/// That traffic of every kind passes, and a new configuration comes in force.
fn works(lab: &Lab, router: &Router, daemon: &str) {
    for address in ["10.0.2.2", "fd00:2::2", "10.0.1.1", "10.0.2.1"] {
        lab.host(1, &format!("ping -c 2 -i 0.1 -W 2 {address}")).ok();
    }
    assert!(router.verdict("forwarded") >= 8);
    // Asks for a neighbour, which takes a capability.
    lab.router("ip neigh flush dev p2").ok();
    wait_for("the neighbour is found again", || lab.reaches(1, "10.0.2.2"));
    let config = lab.configure(daemon, "[[route]]\nto = \"198.51.100.0/24\"\ntype = \"blackhole\"\n");
    let ran = |what: &str| lab.router(&format!("{SWEEPD} {what} --config {}", config.display())).ok();
    ran("reload");
    assert!(ran("show routes 198.51.100.1").contains("blackhole"));
}

#[test]
fn another_users_daemon_forwards_and_reloads_and_leaves_nothing() {
    needs_lab!();
    let lab = Lab::new(2);
    fs::set_permissions(lab.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let daemon = "user = \"nobody\"";
    let router = lab.start_with(daemon, "");
    works(&lab, &router, daemon);
    assert_eq!(workers_are_confined(&router), 1);
    for (name, status) in threads(&router) {
        assert_eq!((field(&status, "Uid"), field(&status, "NoNewPrivs") == "1"), (NOBODY, name != "signals"));
        if name == "keeper" {
            assert_eq!(capabilities(&status), [KEPT; 4]);
        }
        assert_eq!(capabilities(&status).iter().fold(0, |all, set| all | set) & !KEPT, 0, "{name}");
    }
    router.stop();
    // The directory is its own now; the next one, of root's, takes it over as well.
    lab.start().stop();
}

#[test]
fn roots_daemon_confines_its_workers_as_well() {
    needs_lab!();
    let lab = Lab::with_queues(&[2, 2]);
    let router = lab.start_with("cpus = [0, 1]", "");
    works(&lab, &router, "cpus = [0, 1]");
    assert_eq!(workers_are_confined(&router), 2);
    router.stop();
}

/// As conf/sweepd.service has it started.
#[test]
fn three_capabilities_are_enough_to_open_ports() {
    needs_lab!();
    let lab = Lab::new(2);
    fs::set_permissions(lab.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let binary = lab.dir.path().join("sweepd");
    fs::copy(SWEEPD, &binary).unwrap();
    fs::create_dir(lab.runtime_dir()).unwrap();
    std::os::unix::fs::chown(lab.runtime_dir(), Some(65534), Some(65534)).unwrap();
    lab.configure("", "");
    // Instead of a limit that not even root may lift here, a capability goes before it.
    let unlimited = "prlimit --memlock=unlimited";
    let (unlimited, caps) = if sh(&format!("{unlimited} true")).code == 0 {
        (unlimited, "-all,+net_admin,+net_raw,+bpf")
    } else {
        println!("skipped: ports without CAP_IPC_LOCK, since the limit of locked memory cannot be lifted");
        ("env", "-all,+net_admin,+net_raw,+bpf,+ipc_lock")
    };
    let router = lab.launch_binary(
        &binary,
        &format!(
            "{unlimited} setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --no-new-privs \
             --bounding-set={caps} --inh-caps={caps} --ambient-caps={caps}"
        ),
    );
    wait_for("it forwards", || {
        assert!(!router.log().contains("sweepd: "), "{}", router.log());
        router.log().contains(": forwarding\n")
    });
    // Not even the way up to the host is missing.
    assert!(!router.log().contains("tun:"), "{}", router.log());
    works(&lab, &router, "");
    assert_eq!(workers_are_confined(&router), 1);
    for (name, status) in threads(&router) {
        assert_eq!(field(&status, "Uid"), NOBODY, "{name}");
    }
    router.stop();
}

#[test]
fn a_user_that_cannot_be_had_is_one_line() {
    needs_lab!();
    let lab = Lab::new(1);
    for (daemon, code, hint) in [
        ("user = \"nosuchuser\"".to_owned(), 2, "there is no user \"nosuchuser\"; make one"),
        (
            format!("user = \"nobody\"\nruntime_dir = {:?}", lab.dir.path()),
            1,
            "holds more than the daemon's files",
        ),
    ] {
        let text = format!("[daemon]\n{daemon}\n[[port]]\ndevice = \"xdp:p1\"\n");
        lab.configuration(&text);
        let mut router = lab.launch("");
        assert_eq!(router.wait(), Some(code), "{}", router.log());
        let log = router.log();
        let errors: Vec<_> = log.lines().filter(|line| line.starts_with("sweepd: ")).collect();
        assert!(errors.len() == 1 && errors[0].contains(hint), "{log}");
        assert!(!lab.has_program("p1"));
    }
}
