//! Sockets that count exactly: numbered datagrams, and a stream whose every byte is known.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};

use crate::net::Lab;

/// A socket on a port that an earlier one may just have had: a process that is being started by
/// another test holds copies of all descriptors for a moment.
fn bind(port: u16) -> UdpSocket {
    for _ in 0..100 {
        match UdpSocket::bind(("::", port)) {
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => thread::sleep(Duration::from_millis(20)),
            other => return other.unwrap(),
        }
    }
    panic!("port {port} stays in use");
}

/// Collects numbered datagrams in a host.
pub struct Receiver {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<(u32, Instant)>>>,
}

impl Receiver {
    /// On a port of all the host's addresses.
    pub fn start(lab: &Lab, host: u32, port: u16) -> Self {
        let socket = lab.in_host(host, || bind(port));
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        // Room for all, so that nothing is lost where this thread has to wait for its turn.
        setsockopt(&socket, RcvBufForce, &(16 << 20)).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let until = done.clone();
        let thread = thread::spawn(move || {
            let (mut got, mut bytes) = (Vec::new(), [0; 2048]);
            loop {
                match socket.recv(&mut bytes) {
                    Ok(n) if n >= 4 => {
                        got.push((u32::from_be_bytes(bytes[..4].try_into().unwrap()), Instant::now()));
                    }
                    // Nothing is on the way any more.
                    Err(_) if until.load(Ordering::Relaxed) => return got,
                    _ => {}
                }
            }
        });
        Self { done, thread: Some(thread) }
    }

    /// What has come, in order, and when.
    pub fn finish(mut self) -> Vec<(u32, Instant)> {
        thread::sleep(Duration::from_millis(200));
        self.done.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

/// Sends numbered datagrams from a host.
pub struct Sender {
    done: Arc<AtomicBool>,
    sent: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

impl Sender {
    /// One a millisecond or so.
    pub fn start(lab: &Lab, host: u32, to: &str, port: u16) -> Self {
        Self::every(Duration::from_millis(1), lab, host, to, port)
    }

    /// As many as a thread can.
    pub fn flood(lab: &Lab, host: u32, to: &str, port: u16) -> Self {
        Self::every(Duration::ZERO, lab, host, to, port)
    }

    /// One every `pause`, or a little less often.
    pub fn every(pause: Duration, lab: &Lab, host: u32, to: &str, port: u16) -> Self {
        let to = SocketAddr::new(to.parse().unwrap(), port);
        let socket = client(lab, host, to.ip());
        let done = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU32::new(0));
        let (until, count) = (done.clone(), sent.clone());
        let thread = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                let n = count.load(Ordering::Relaxed);
                // An ICMP error that came back is no reason to stop.
                if socket.send_to(&n.to_be_bytes(), to).is_ok() {
                    count.store(n + 1, Ordering::Relaxed);
                }
                if !pause.is_zero() {
                    thread::sleep(pause);
                }
            }
        });
        Self { done, sent, thread: Some(thread) }
    }

    /// How many have been sent.
    pub fn sent(&self) -> u32 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Stops; gives how many were sent.
    pub fn finish(mut self) -> u32 {
        self.done.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.sent()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

/// Sends the numbers below `count` from a host, without a pause but now and then.
pub fn send_numbers(lab: &Lab, host: u32, to: &str, port: u16, count: u32, len: usize) {
    let to = SocketAddr::new(to.parse().unwrap(), port);
    let socket = client(lab, host, to.ip());
    let mut bytes = vec![0; len.max(4)];
    for n in 0..count {
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        let _ = socket.send_to(&bytes, to);
        if n % 16 == 15 {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn client(lab: &Lab, host: u32, to: IpAddr) -> UdpSocket {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    lab.in_host(host, || UdpSocket::bind(any).unwrap())
}

/// The numbers below `sent` that did not come, and those that came more than once.
pub fn missing_and_double(got: &[(u32, Instant)], sent: u32) -> (Vec<u32>, Vec<u32>) {
    let mut times = BTreeMap::new();
    for (n, _) in got {
        *times.entry(*n).or_insert(0) += 1;
    }
    let missing = (0..sent).filter(|n| !times.contains_key(n)).collect();
    let double = times.into_iter().filter(|(_, times)| *times > 1).map(|(n, _)| n).collect();
    (missing, double)
}

/// A TCP connection in a lab: the listener's end, and the caller's.
pub fn connect(listener: TcpListener, dial: impl FnOnce() -> TcpStream + Send) -> (TcpStream, TcpStream) {
    let accept = thread::spawn(move || listener.accept().unwrap().0);
    let caller = dial();
    let server = accept.join().unwrap();
    for stream in [&server, &caller] {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    (server, caller)
}

/// Sends `bytes` bytes both ways at the same time and compares every one.
pub fn exchange(one: TcpStream, other: TcpStream, bytes: usize) {
    thread::scope(|scope| {
        for (from, to, seed) in [(&one, &other, 1), (&other, &one, 2)] {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            scope.spawn(move || from.write_all(&pattern(bytes, seed)).unwrap());
            scope.spawn(move || {
                let mut got = vec![0; bytes];
                to.read_exact(&mut got).unwrap();
                assert!(got == pattern(bytes, seed), "bytes changed on the way");
            });
        }
    });
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}
