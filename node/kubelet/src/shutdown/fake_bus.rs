//! A fake D-Bus for tests: it acts as logind for one client, answers its calls, and signals shutdowns.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};

pub struct FakeBus(UnixStream);

impl FakeBus {
    /// Accepts a client.
    pub fn accept(listener: &UnixListener) -> FakeBus {
        let (mut stream, _) = listener.accept().unwrap();
        for answer in ["OK 1234\r\n", "AGREE_UNIX_FD\r\n", ""] {
            let mut line = Vec::new();
            while line.last() != Some(&b'\n') {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                line.push(byte[0]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
        }
        FakeBus(stream)
    }

    /// Answers one call as a logind with this delay in seconds; returns the called method.
    pub fn answer_one(&mut self, seconds: u64) -> String {
        let (member, serial) = self.call();
        let mut delay = vec![1, b't', 0, 0, 0, 0, 0, 0];
        delay.extend((seconds * 1_000_000).to_le_bytes());
        match member.as_str() {
            "InhibitDelayMaxUSec" => self.answer(serial, &delay, None),
            "Inhibit" => {
                let lock = std::fs::File::open("/dev/null").unwrap();
                self.answer(serial, &0_u32.to_le_bytes(), Some(&lock));
            }
            _ => self.answer(serial, &[], None),
        }
        member
    }

    /// Returns the method of the next call, and its serial.
    fn call(&mut self) -> (String, u32) {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).unwrap();
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let mut rest = vec![0; (16 + number(12) as usize).next_multiple_of(8) - 16 + number(4) as usize];
        self.0.read_exact(&mut rest).unwrap();
        let text = String::from_utf8_lossy(&rest).into_owned();
        let members = ["Hello", "InhibitDelayMaxUSec", "AddMatch", "KillUnit", "Inhibit"];
        let member = members.into_iter().find(|member| text.contains(member)).unwrap_or_default();
        (member.to_owned(), number(8))
    }

    /// Sends a message with these header fields (aligned to 8 each) and this body.
    fn send(&self, kind: u8, fields: &[u8], body: &[u8], descriptor: Option<&std::fs::File>) {
        let mut message = vec![b'l', kind, 0, 1];
        for number in [u32::try_from(body.len()).unwrap(), 1, u32::try_from(fields.len()).unwrap()] {
            message.extend(number.to_le_bytes());
        }
        message.extend(fields);
        message.resize(message.len().next_multiple_of(8), 0);
        message.extend(body);
        let raw: Vec<i32> = descriptor.iter().map(|file| file.as_raw_fd()).collect();
        let control = [nix::sys::socket::ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &control[..0] } else { &control[..] };
        let parts = [std::io::IoSlice::new(&message)];
        let flags = nix::sys::socket::MsgFlags::empty();
        nix::sys::socket::sendmsg::<()>(self.0.as_raw_fd(), &parts, control, flags, None).unwrap();
    }

    fn answer(&self, serial: u32, body: &[u8], descriptor: Option<&std::fs::File>) {
        let mut fields = vec![5, 1, b'u', 0];
        fields.extend(serial.to_le_bytes());
        if descriptor.is_some() {
            fields.extend([9, 1, b'u', 0, 1, 0, 0, 0]);
        }
        self.send(2, &fields, body, descriptor);
    }

    pub fn prepare_for_shutdown(&self, begins: u32) {
        let mut fields: Vec<u8> = Vec::new();
        for (code, text) in [(2, "org.freedesktop.login1.Manager"), (3, "PrepareForShutdown")] {
            fields.resize(fields.len().next_multiple_of(8), 0);
            fields.extend([code, 1, b's', 0]);
            fields.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
            fields.extend(text.as_bytes());
            fields.push(0);
        }
        self.send(4, &fields, &begins.to_le_bytes(), None);
    }
}
