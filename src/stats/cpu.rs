//! Processor time of a daemon's workers, as the system counts it anyway: no worker has to.

use std::collections::HashMap;

/// Seconds of processor time of every worker of process `pid`, by its number, since its thread
/// began. Empty where the system does not say, or the process is gone.
#[cfg(target_os = "linux")]
pub fn times(pid: u32) -> HashMap<usize, f64> {
    // SAFETY: takes a number, gives a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return HashMap::new() };
    // A thread may end between being listed and being read.
    let stats =
        threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    stats.filter_map(|stat| worker(&stat)).map(|(number, time)| (number, time as f64 / ticks)).collect()
}

/// Nothing is known.
#[cfg(not(target_os = "linux"))]
pub fn times(_pid: u32) -> HashMap<usize, f64> {
    HashMap::new()
}

/// The worker's number and its time in ticks, by a line of proc_pid_stat(5); `None` for other
/// threads.
#[cfg(any(target_os = "linux", test))]
fn worker(stat: &str) -> Option<(usize, u64)> {
    let (name, rest) = (stat.split_once('(')?.1).rsplit_once(')')?;
    let number = name.strip_prefix("worker ")?.parse().ok()?;
    let mut fields = rest.split_whitespace().skip(11).map(str::parse::<u64>);
    Some((number, fields.next()?.ok()? + fields.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workers_line_is_read_and_others_are_not() {
        let line = |name| format!("12 ({name}) S 1 12 12 0 -1 4194624 5 0 0 0 250 50 0 0 20 0 9 0 77 1 2 3");
        assert_eq!(worker(&line("worker 3")), Some((3, 300)));
        for other in ["keeper", "worker", "worker )", ") worker 1"] {
            assert_eq!(worker(&line(other)), None, "{other}");
        }
        for broken in ["", "12 (worker 1", "12 (worker 1) S 1 2"] {
            assert_eq!(worker(broken), None);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_running_thread_has_used_time() {
        let thread = std::thread::Builder::new().name("worker 41".into()).spawn(|| {
            let me = || times(std::process::id()).get(&41).copied();
            let start = std::time::Instant::now();
            while me().is_none_or(|time| time == 0.0) {
                assert!(start.elapsed().as_secs() < 60, "{:?}", me());
            }
        });
        thread.unwrap().join().unwrap();
        assert!(times(u32::MAX).is_empty());
    }
}
