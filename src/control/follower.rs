//! The thread that does nothing but read the kernel's news, so that the kernel's queue is emptied
//! while the keeper works; and the keeper's way to it.

use std::{
    cell::Cell,
    io,
    net::IpAddr,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::kernel::{Care, Follow, Index, KernelCommands, KernelSource, Open, Parts, Report};

/// Batches that may wait for the keeper; then news wait in the kernel's queue, which is larger, and
/// listings in its tables. A batch of a listing has some 500 routes: what is new never waits behind
/// more than 50 ms of these.
const WAITING: usize = 64;
/// Shortest time between two complaints about the neighbour table.
const COMPLAIN: Duration = Duration::from_secs(60);

/// What comes from the thread.
pub enum News {
    /// News, in order.
    Reports(Vec<Report>),
    /// There will be no more.
    Lost(io::Error),
}

impl News {
    /// The thread has ended without a word.
    pub fn lost() -> Self {
        Self::Lost(io::Error::other("the listening thread has ended"))
    }
}

/// The thread and the way to it; dropping it ends the thread.
pub struct Follower {
    commands: Box<dyn KernelCommands>,
    news: Option<Receiver<News>>,
    thread: Option<JoinHandle<()>>,
    complained: Cell<Option<Instant>>,
}

impl Follower {
    /// Starts listening to what `open` opens. Ask for everything to be listed first.
    ///
    /// # Errors
    /// The system's.
    pub fn start(open: Open, follow: Follow) -> io::Result<Self> {
        let (source, commands) = open(follow)?;
        Self::over(source, commands)
    }

    /// Starts listening to a source that is open already.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn over(source: Box<dyn KernelSource>, commands: Box<dyn KernelCommands>) -> io::Result<Self> {
        let (sender, news) = bounded(WAITING);
        let thread =
            std::thread::Builder::new().name("kernel-news".into()).spawn(move || listen(source, &sender))?;
        Ok(Self { commands, news: Some(news), thread: Some(thread), complained: Cell::new(None) })
    }

    /// Where the news come from.
    pub fn news(&self) -> &Receiver<News> {
        // Taken only when `self` is dropped.
        self.news.as_ref().expect("there until dropped")
    }

    /// Asks for everything of `parts` to be listed.
    pub fn list(&self, parts: Parts) {
        self.commands.list(parts);
    }

    /// Tells the kernel that a neighbour is no longer to be looked after.
    pub fn release(&self, index: Index, address: IpAddr) {
        // One that is gone needs no more.
        let _ = self.commands.resolve(index, address, Care::Release);
    }

    /// Asks the kernel for a neighbour.
    pub fn resolve(&self, index: Index, address: IpAddr, care: Care) {
        let Err(e) = self.commands.resolve(index, address, care) else { return };
        let now = Instant::now();
        if self.complained.get().is_some_and(|last| now < last + COMPLAIN) {
            return;
        }
        self.complained.set(Some(now));
        match e.raw_os_error() {
            Some(libc::ENOBUFS) => {
                let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
                log::error!(
                    "the kernel's neighbour table is full, {address} is not looked for: raise the sysctl \
                     net.{family}.neigh.default.gc_thresh3"
                );
            }
            _ => log::warn!("the kernel does not look for the neighbour {address}: {e}"),
        }
    }

    /// Messages of the kernel's that were not understood, ever.
    pub fn unparsed(&self) -> u64 {
        self.commands.unparsed()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.commands.stop();
        // A thread that waits for room in the channel gets an error instead.
        self.news = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(mut source: Box<dyn KernelSource>, news: &Sender<News>) {
    loop {
        let mut reports = Vec::new();
        let message = match source.wait(&mut reports) {
            Ok(true) => News::Reports(reports),
            Ok(false) => return,
            Err(e) => News::Lost(e),
        };
        let last = matches!(message, News::Lost(_));
        if news.send(message).is_err() || last {
            return;
        }
    }
}
