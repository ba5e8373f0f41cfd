//! A server for one text: HTTP/1.1, one request a connection, in a thread of its own that never
//! waits for a single client. Requests are short, connections few and their time is limited: a
//! client that sends too much or too slowly, or does not take its answer, is cut off.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::reply::{HEAD_MAX, Reply};

/// Connections at the same time; for one more, the oldest goes.
const CONNECTIONS_MAX: usize = 16;
/// How long a connection may last.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that a client may send after its request, before it is cut off.
const REST_MAX: usize = 65536;
/// Pause when there is no descriptor left for a client.
const PAUSE: Duration = Duration::from_millis(10);

/// The address for metrics cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("daemon.metrics: cannot listen on {address} ({source}); {advice}", advice = advice(source))]
pub struct MetricsError {
    /// The address.
    pub address: SocketAddr,
    /// The system's word.
    pub source: io::Error,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse => "end the program that has it, or choose another port",
        ErrorKind::AddrNotAvailable => "choose an address of this machine, as 127.0.0.1:9188",
        ErrorKind::PermissionDenied => "choose a port above 1023",
        _ => "choose another address, or remove the key",
    }
}

/// A listening socket that is not served yet.
pub struct Listening {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listening {
    /// Listens on `address`; port 0 takes any that is free.
    ///
    /// # Errors
    /// [`MetricsError`]: somebody else has it, or it is not this machine's.
    pub fn on(address: SocketAddr) -> Result<Self, MetricsError> {
        let failed = |source| MetricsError { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Where clients find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins to answer with what `text` gives.
    ///
    /// # Errors
    /// When there can be no more threads or descriptors.
    pub fn serve(self, text: impl FnMut() -> Arc<str> + Send + 'static) -> io::Result<MetricsServer> {
        let (stopped, stop) = io::pipe()?;
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(move || {
            Server { listener: self.listener, stopped: stopped.into(), text, connections: Vec::new() }.run();
        })?;
        Ok(MetricsServer { stop: Some(stop), thread: Some(thread) })
    }
}

/// The running server; dropping it ends its thread and its connections.
pub struct MetricsServer {
    /// Closed to end the thread.
    stop: Option<io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Server<F> {
    listener: TcpListener,
    stopped: OwnedFd,
    text: F,
    /// The oldest first.
    connections: Vec<Connection>,
}

impl<F: FnMut() -> Arc<str>> Server<F> {
    fn run(mut self) {
        loop {
            let mut fds = vec![
                PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            ];
            fds.extend(self.connections.iter().map(|c| PollFd::new(c.stream.as_fd(), c.interest())));
            match poll(&mut fds, self.timeout()) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(e) => {
                    log::error!("metrics are no longer served: {e}");
                    return;
                }
            }
            let ready: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
            drop(fds);
            if ready[0] {
                return;
            }
            for (connection, ready) in self.connections.iter_mut().zip(&ready[2..]) {
                if *ready {
                    connection.go_on(&mut self.text);
                }
            }
            let now = Instant::now();
            self.connections.retain(|c| c.step != Step::Over && c.deadline > now);
            if ready[1] {
                self.let_in(now);
            }
        }
    }

    fn timeout(&self) -> PollTimeout {
        let now = Instant::now();
        // All have the same time: the oldest's is over first.
        self.connections.first().map_or(PollTimeout::NONE, |oldest| {
            let left = oldest.deadline.saturating_duration_since(now) + Duration::from_millis(1);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        })
    }

    /// Lets in those that wait, at most as many as there may be.
    fn let_in(&mut self, now: Instant) {
        for _ in 0..CONNECTIONS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                    if self.connections.len() == CONNECTIONS_MAX {
                        self.connections.remove(0);
                    }
                    self.connections.push(Connection::new(stream, now));
                }
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    // No descriptor left: the client waits until there is one.
                    std::thread::sleep(PAUSE);
                    return;
                }
            }
        }
    }
}

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Request,
    Answer,
    /// Everything is sent; the client closes, so that no reset overtakes the answer.
    Rest,
    Over,
}

struct Connection {
    stream: TcpStream,
    step: Step,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes sent of the answer, then bytes received after the request.
    done: usize,
    deadline: Instant,
}

impl Connection {
    fn new(stream: TcpStream, now: Instant) -> Self {
        let (input, output) = (Vec::new(), Vec::new());
        Self { stream, step: Step::Request, input, output, done: 0, deadline: now + PATIENCE }
    }

    fn interest(&self) -> PollFlags {
        if self.step == Step::Answer { PollFlags::POLLOUT } else { PollFlags::POLLIN }
    }

    /// Does what can be done without waiting.
    fn go_on(&mut self, text: &mut impl FnMut() -> Arc<str>) {
        let next = match self.step {
            Step::Request => self.receive(text),
            Step::Answer => self.send(),
            Step::Rest => self.drain(),
            Step::Over => Ok(Step::Over),
        };
        self.step = match next {
            Ok(step) => step,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => self.step,
            Err(_) => Step::Over,
        };
    }

    fn receive(&mut self, text: &mut impl FnMut() -> Arc<str>) -> io::Result<Step> {
        let mut buffer = [0; HEAD_MAX];
        let n = self.stream.read(&mut buffer)?;
        if n == 0 {
            return Ok(Step::Over);
        }
        self.input.extend_from_slice(&buffer[..n]);
        let Some(reply) = Reply::to(&self.input) else { return Ok(Step::Request) };
        self.input = Vec::new();
        self.output = reply.bytes(text);
        // Most answers fit the socket's buffer.
        self.step = Step::Answer;
        self.send()
    }

    fn send(&mut self) -> io::Result<Step> {
        while self.done < self.output.len() {
            match self.stream.write(&self.output[self.done..])? {
                0 => return Ok(Step::Over),
                n => self.done += n,
            }
        }
        self.output = Vec::new();
        self.done = 0;
        self.stream.shutdown(Shutdown::Write)?;
        Ok(Step::Rest)
    }

    fn drain(&mut self) -> io::Result<Step> {
        let n = self.stream.read(&mut [0; HEAD_MAX])?;
        self.done += n;
        Ok(if n == 0 || self.done > REST_MAX { Step::Over } else { Step::Rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(text: &str) -> (SocketAddr, MetricsServer) {
        let listening = Listening::on("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listening.address();
        let text: Arc<str> = text.into();
        (address, listening.serve(move || text.clone()).unwrap())
    }

    fn get(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: router\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_scrape_gets_the_text_and_the_connection_ends() {
        let (address, _server) = serve("# EOF\n");
        let text = get(address);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text"), "{text}");
        assert!(text.ends_with("\r\n\r\n# EOF\n"), "{text}");
    }

    #[test]
    fn a_request_may_come_byte_by_byte_and_an_answer_be_larger_than_any_buffer() {
        let long = "a 1\n".repeat(4_000_000);
        let (address, _server) = serve(&long);
        let mut stream = TcpStream::connect(address).unwrap();
        for byte in b"GET /metrics HTTP/1.1\r\n\r\n" {
            stream.write_all(&[*byte]).unwrap();
        }
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text.split_once("\r\n\r\n").unwrap().1.len(), long.len());
    }

    #[test]
    fn clients_that_send_nothing_keep_nobody_out() {
        let (address, _server) = serve("# EOF\n");
        let idle: Vec<_> = (0..3 * CONNECTIONS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
        for _ in 0..3 {
            assert!(get(address).ends_with("# EOF\n"));
        }
        drop(idle);
    }

    #[test]
    fn one_that_sends_without_end_is_cut_off() {
        let (address, _server) = serve("# EOF\n");
        let start = Instant::now();
        let mut stream = TcpStream::connect(address).unwrap();
        while stream.write_all(&[b'a'; 4096]).is_ok() {
            assert!(start.elapsed() < PATIENCE * 4, "it is still let send");
        }
        assert!(get(address).ends_with("# EOF\n"));
    }

    #[test]
    fn one_that_waits_too_long_is_cut_off() {
        let (address, _server) = serve("# EOF\n");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /met").unwrap();
        stream.set_read_timeout(Some(PATIENCE * 4)).unwrap();
        let start = Instant::now();
        assert!(matches!(stream.read(&mut [0; 9]), Ok(0) | Err(_)));
        assert!((PATIENCE / 2..PATIENCE * 4).contains(&start.elapsed()), "after {:?}", start.elapsed());
    }

    #[test]
    fn an_address_that_somebody_has_is_named_with_what_to_do() {
        let (address, server) = serve("# EOF\n");
        let e = Listening::on(address).err().unwrap().to_string();
        assert!(e.contains(&address.to_string()) && e.contains("end the program that has it"), "{e}");
        // After its end the address is free at once.
        get(address);
        drop(server);
        Listening::on(address).unwrap();
        let e = Listening::on("192.0.2.1:9188".parse().unwrap()).err().unwrap().to_string();
        assert!(e.contains("an address of this machine"), "{e}");
    }
}
