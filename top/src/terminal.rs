//! The terminal: raw mode, the alternate screen, and the thread that reads keys. Everything is restored when the value
//! is dropped, also by a panic.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use crate::frame::Size;
use crate::keys::{self, Key};

/// The alternate screen, without a cursor and without wrapped lines.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l";
const LEAVE: &str = "\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";
const HOME: &str = "\u{1b}[H";
const CLEAR_LINE: &str = "\u{1b}[K";
const CLEAR_REST: &str = "\u{1b}[J";
/// The interval at which the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// The size of a terminal that does not know its own.
const USUAL: Size = Size { columns: 80, lines: 24 };

/// A terminal in raw mode.
pub struct Terminal {
    saved: Termios,
    keys: Option<Reader>,
}

/// The thread that reads keys.
struct Reader {
    is_ending: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Terminal {
    /// Takes the terminal. Keys come through the channel.
    pub fn open(keys: &mpsc::Sender<Key>) -> io::Result<Terminal> {
        let saved = tcgetattr(io::stdin())?;
        let mut terminal = Terminal { saved, keys: None };
        terminal.enter(keys)?;
        Ok(terminal)
    }

    fn enter(&mut self, keys: &mpsc::Sender<Key>) -> io::Result<()> {
        let mut raw = self.saved.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        write(ENTER)?;
        self.keys = Some(Reader::start(keys.clone()));
        Ok(())
    }

    /// Gives the terminal back. Doing it twice is harmless.
    fn leave(&mut self) {
        if let Some(reader) = self.keys.take() {
            reader.is_ending.store(true, Ordering::SeqCst);
            let _ = reader.thread.join();
        }
        // A terminal that is gone cannot be restored.
        let _ = write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.saved);
    }

    /// Gives the terminal to another program while it runs.
    pub fn lend<T>(&mut self, keys: &mpsc::Sender<Key>, program: impl FnOnce() -> T) -> io::Result<T> {
        self.leave();
        let outcome = program();
        self.enter(keys)?;
        Ok(outcome)
    }

    pub fn size(&self) -> Size {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                Size { columns: usize::from(size.ws_col), lines: usize::from(size.ws_row) }
            }
            _ => USUAL,
        }
    }

    /// Draws all lines in one write.
    pub fn draw(&self, lines: &[String]) -> io::Result<()> {
        let mut text = HOME.to_owned();
        for (number, line) in lines.iter().enumerate() {
            if number > 0 {
                text.push_str("\r\n");
            }
            text.push_str(line);
            text.push_str(CLEAR_LINE);
        }
        text.push_str(CLEAR_REST);
        write(&text)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.leave();
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

impl Reader {
    fn start(keys: mpsc::Sender<Key>) -> Reader {
        let is_ending = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_ending);
        let thread = std::thread::spawn(move || {
            while !flag.load(Ordering::SeqCst) {
                match read_keys() {
                    Ok(Some(read)) => {
                        if read.into_iter().any(|key| keys.blocking_send(key).is_err()) {
                            return;
                        }
                    }
                    Ok(None) => {}
                    // The terminal is gone: the command ends as by Ctrl-C.
                    Err(_) => {
                        let _ = keys.blocking_send(Key::Control('c'));
                        return;
                    }
                }
            }
        });
        Reader { is_ending, thread }
    }
}

/// Reads keys, if some come soon.
fn read_keys() -> io::Result<Option<Vec<Key>>> {
    let stdin = io::stdin();
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as _ };
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    match poll(&mut polled, Some(&timeout)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let mut bytes = [0; 256];
    // The standard library would keep bytes back in its buffer.
    let count = match rustix::io::read(&stdin, &mut bytes) {
        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => count,
        Err(rustix::io::Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some(keys::parse(&bytes[..count])))
}
