//! The tester: puts frames into one port, by the clock, and takes them out of the other.

use std::{
    io,
    net::{Ipv4Addr, UdpSocket},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use netmap::Port;
use sweepd::wire::{
    arp::{ArpPacket, REPLY, REQUEST},
    ethernet::{self, Mac},
};
use zerocopy::IntoBytes;

use super::frames::{self, Path, Size, Stamp};

/// Frames sent between two looks at what came in.
const BATCH: u64 = 64;

/// How long to wait for the last frames of a trial; RFC 2544 section 23 asks for two seconds.
const DRAIN: Duration = Duration::from_millis(500);

/// Nanoseconds of the longest latency that is told apart from longer ones.
const LONGEST: u64 = 10_000_000_000;

/// One of the tester's ports.
pub struct Side {
    port: Port,
    address: Ipv4Addr,
    mac: Mac,
}

impl Side {
    /// The tester's `address` behind `port`.
    pub fn new(port: Port, address: Ipv4Addr) -> Self {
        // A device without an address of its own takes one that nobody else has here.
        let made_up = [2, 0x25, 0x44, address.octets()[1], address.octets()[2], address.octets()[3]];
        let mac = port.info.mac.unwrap_or(made_up);
        Self { port, address, mac }
    }

    /// Sends a copy of `frame`.
    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        let queue = &mut self.port.tx[0];
        queue.ring.send(frame);
        queue.sync().map_err(|e| io::Error::other(format!("{}: {e}", self.port.info.device)))
    }

    /// Hands all that has come in to `take`; answers requests for our MAC address.
    fn receive(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<u64> {
        let (mac, address) = (self.mac, self.address);
        let mut replies = Vec::new();
        let mut count = 0;
        for queue in &mut self.port.rx {
            queue.sync().map_err(|e| io::Error::other(format!("{}: {e}", self.port.info.device)))?;
            let n = queue.ring.available();
            for k in 0..n {
                let slot = queue.ring.index(k);
                // SAFETY: the slot lies between head and tail, and its frame ends with this turn.
                let Some(frame) = (unsafe { queue.ring.frame(slot) }) else { continue };
                let bytes = frame.bytes();
                if let Some(reply) = answer(bytes, mac, address) {
                    replies.push(reply);
                } else {
                    take(bytes);
                }
            }
            queue.ring.advance(n);
            count += u64::from(n);
        }
        for reply in replies {
            self.send(&reply)?;
        }
        Ok(count)
    }
}

/// The reply to an ARP request for `address`.
fn answer(frame: &[u8], mac: Mac, address: Ipv4Addr) -> Option<Vec<u8>> {
    let packet = arp(frame)?;
    let asked = packet.operation.get() == REQUEST && packet.target() == address;
    asked.then(|| {
        let reply = ArpPacket::new(REPLY, (mac, address), (packet.sender_mac, packet.sender()));
        arp_frame(packet.sender_mac, mac, &reply)
    })
}

fn arp(frame: &[u8]) -> Option<&ArpPacket> {
    let is_arp = frame.get(12..14)? == ethernet::ARP.to_be_bytes();
    ArpPacket::parse(&frame[14..]).filter(|_| is_arp)
}

fn arp_frame(to: Mac, from: Mac, packet: &ArpPacket) -> Vec<u8> {
    let mut frame = [&to[..], &from[..], &ethernet::ARP.to_be_bytes(), packet.as_bytes()].concat();
    frame.resize(60, 0);
    frame
}

/// How a trial went.
#[derive(Clone)]
pub struct Trial {
    /// Frames put in.
    pub sent: u64,
    /// Frames of them that came out.
    pub received: u64,
    /// How long the sending took.
    pub time: Duration,
    /// Whether the tester could send as fast as it was told to.
    kept_up: bool,
    latency: Histogram<u64>,
}

impl Trial {
    /// Frames that did not come out.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    /// The same, as a share of those put in.
    pub fn loss(&self) -> f64 {
        self.lost() as f64 / self.sent.max(1) as f64
    }

    /// Frames put in a second.
    pub fn sent_a_second(&self) -> f64 {
        self.sent as f64 / self.time.as_secs_f64()
    }

    /// Frames that came out a second.
    pub fn received_a_second(&self) -> f64 {
        self.received as f64 / self.time.as_secs_f64()
    }

    /// Whether as many frames were put in as was wanted.
    pub fn kept_up(&self) -> bool {
        self.kept_up
    }

    /// The latency that a share (0.0 to 1.0) of the frames did not exceed.
    pub fn latency(&self, share: f64) -> Duration {
        Duration::from_nanos(self.latency.value_at_quantile(share))
    }
}

/// Two ports with a router between them.
pub struct Tester {
    from: Side,
    to: Side,
    path: Path,
    flows: u16,
    trial: u32,
    begun: Instant,
}

impl Tester {
    /// A tester that sends from `from` to `to` by the router with this MAC address, or if there is
    /// none with the one that answers for `gateway`.
    ///
    /// # Errors
    /// The router does not answer.
    pub fn new(from: Side, to: Side, gateway: Ipv4Addr, router: Option<Mac>, flows: u16) -> io::Result<Self> {
        let path = Path { macs: (from.mac, [0; 6]), addresses: (from.address, to.address) };
        let mut tester = Self { from, to, path, flows, trial: 0, begun: Instant::now() };
        tester.path.macs.1 = match router {
            Some(mac) => mac,
            None => tester.resolve(gateway)?,
        };
        Ok(tester)
    }

    /// The MAC address that answers for `gateway`. What a device passes up to the kernel by itself
    /// does not come here, so the kernel is asked too.
    fn resolve(&mut self, gateway: Ipv4Addr) -> io::Result<Mac> {
        let request = ArpPacket::new(REQUEST, (self.from.mac, self.from.address), ([0; 6], gateway));
        let frame = arp_frame([0xff; 6], self.from.mac, &request);
        let until = Instant::now() + Duration::from_secs(3);
        let mut found = None;
        while Instant::now() < until {
            self.from.send(&frame)?;
            // A datagram to the discard port has the kernel ask for itself.
            if let Ok(socket) = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)) {
                let _ = socket.send_to(&[0], (gateway, 9));
            }
            let again = Instant::now() + Duration::from_millis(200);
            while found.is_none() && Instant::now() < again {
                self.from.receive(|frame| {
                    let reply = arp(frame).filter(|p| p.operation.get() == REPLY && p.sender() == gateway);
                    found = found.or(reply.map(|p| p.sender_mac));
                })?;
                found = found.or_else(|| kernels_neighbor(gateway));
                std::thread::sleep(Duration::from_millis(2));
            }
            if let Some(mac) = found {
                return Ok(mac);
            }
        }
        Err(io::Error::other(format!(
            "{gateway} does not answer on {}: check --addresses and --gateway, or give the router's address by --mac",
            self.from.port.info.device
        )))
    }

    /// Sends single frames until one comes through, so that every neighbour is known.
    ///
    /// # Errors
    /// None does.
    pub fn wait_for_the_way(&mut self) -> io::Result<()> {
        for _ in 0..20 {
            if self.trial(Size::Bytes(64), 20.0, Duration::from_millis(100))?.received > 0 {
                return Ok(());
            }
        }
        Err(io::Error::other(format!(
            "nothing comes through from {} to {}: does the router have both networks, and {} as a neighbour?",
            self.from.address, self.to.address, self.to.address
        )))
    }

    /// Sends `rate` frames a second for `time`, or as many as possible when it is infinite.
    ///
    /// # Errors
    /// A port fails.
    pub fn trial(&mut self, size: Size, rate: f64, time: Duration) -> io::Result<Trial> {
        self.send_and_count(size, rate, time, u64::MAX)
    }

    /// Sends `frames` frames as fast as possible.
    ///
    /// # Errors
    /// A port fails.
    pub fn burst(&mut self, size: Size, frames: u64) -> io::Result<Trial> {
        self.send_and_count(size, f64::INFINITY, Duration::from_secs(30), frames)
    }

    fn send_and_count(&mut self, size: Size, rate: f64, time: Duration, most: u64) -> io::Result<Trial> {
        self.trial += 1;
        let latency = Histogram::new_with_bounds(1, LONGEST, 3).map_err(io::Error::other)?;
        let mut trial = Trial { sent: 0, received: 0, time, kept_up: true, latency };
        let start = Instant::now();
        let mut elapsed = Duration::ZERO;
        while elapsed < time && trial.sent < most {
            let due = (elapsed.as_secs_f64() * rate).min(most as f64) as u64;
            self.send(size, due.saturating_sub(trial.sent).min(BATCH), &mut trial)?;
            self.take(&mut trial)?;
            elapsed = start.elapsed();
        }
        trial.time = elapsed.max(Duration::from_micros(1));
        let wanted = (elapsed.as_secs_f64() * rate).min(most as f64);
        trial.kept_up = rate.is_infinite() || trial.sent as f64 >= 0.99 * wanted - BATCH as f64;
        let until = Instant::now() + DRAIN;
        while trial.received < trial.sent && Instant::now() < until {
            self.sync_out()?;
            self.take(&mut trial)?;
        }
        Ok(trial)
    }

    /// Puts up to `n` frames into the ring, as far as it has room.
    fn send(&mut self, size: Size, n: u64, trial: &mut Trial) -> io::Result<()> {
        let now = self.begun.elapsed().as_nanos() as u64;
        for _ in 0..n {
            let stamp = Stamp { trial: self.trial, frame: trial.sent as u32, sent: now };
            let flow = (trial.sent % u64::from(self.flows)) as u16;
            let len = frames::ring_len(size.of(trial.sent));
            let path = &self.path;
            let ring = &mut self.from.port.tx[0].ring;
            if ring.space() == 0 || !ring.send_with(len, |frame| frames::write(frame, path, flow, stamp)) {
                break;
            }
            trial.sent += 1;
        }
        self.sync_out()
    }

    fn sync_out(&mut self) -> io::Result<()> {
        self.from.port.tx[0]
            .sync()
            .map_err(|e| io::Error::other(format!("{}: {e}", self.from.port.info.device)))
    }

    /// Takes what has come, and counts what belongs to the trial.
    fn take(&mut self, trial: &mut Trial) -> io::Result<()> {
        let (number, address) = (self.trial, self.to.address);
        let now = self.begun.elapsed().as_nanos() as u64;
        self.to.receive(|frame| {
            if let Some(stamp) = frames::read(frame, address).filter(|s| s.trial == number) {
                trial.received += 1;
                trial.latency.saturating_record(now.saturating_sub(stamp.sent).max(1));
            }
        })?;
        // The other way carries nothing but questions for addresses.
        self.from.receive(|_| ())?;
        Ok(())
    }
}

/// What the kernel knows of a neighbour, on systems that show it in a file.
fn kernels_neighbor(address: Ipv4Addr) -> Option<Mac> {
    let table = std::fs::read_to_string("/proc/net/arp").ok()?;
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(&address.to_string()))?;
    let mac: Option<Vec<u8>> =
        line.split_whitespace().nth(3)?.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect();
    mac?.try_into().ok().filter(|mac: &Mac| *mac != [0; 6])
}
