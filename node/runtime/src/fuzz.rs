//! Entry points for the fuzz targets: the bytes that clients of streams, images and pods send to the runtime. Nothing
//! else may use this.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use corten_cri::v1;

use crate::Error;
use crate::executor::user;
use crate::images::Digest;
use crate::images::challenge::Challenge;
use crate::images::registry;
use crate::images::unpacking::{self, Task};
use crate::spec::{User, cdi, seccomp};
use crate::streaming::session::Resizes;
use crate::streaming::spdy::{self, frame::Frame, headers};
use crate::streaming::websocket::Framing;

/// Serves a SPDY connection whose client sends these bytes and hangs up; returns how many streams it opened.
pub async fn spdy(bytes: Vec<u8>) -> usize {
    let mut incoming = spdy::serve(tokio::io::join(std::io::Cursor::new(bytes), tokio::io::sink()));
    let mut opened = 0;
    while let Some(mut stream) = incoming.recv().await {
        opened += 1;
        tokio::spawn(async move { while stream.incoming.recv().await.is_some() {} });
    }
    opened
}

/// Returns a sample of the bytes that a SPDY client sends.
pub fn spdy_sample() -> Vec<u8> {
    let mut encoder = headers::Encoder::new();
    let mut block = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        encoder.encode(&pairs.collect::<BTreeMap<String, String>>())
    };
    let first = block(&[("streamtype", "error"), ("port", "80"), ("requestid", "0")]);
    let second = block(&[("streamtype", "data"), ("port", "80"), ("requestid", "0")]);
    let frames = [
        Frame::Settings,
        Frame::SynStream { stream: 1, fin: true, headers: first },
        Frame::SynStream { stream: 3, fin: false, headers: second },
        Frame::Data { stream: 3, fin: true, data: Bytes::from_static(b"data") },
        Frame::WindowUpdate { stream: 3, delta: 9 },
        Frame::Ping { id: 1 },
        Frame::Reset { stream: 3, status: 5 },
        Frame::GoAway { last_stream: 3, status: 0 },
    ];
    let mut wire = BytesMut::new();
    frames.iter().for_each(|frame| frame.encode(&mut wire));
    wire.to_vec()
}

/// Decodes a header block; returns it twice: decoded, and decoded again after it was encoded. Both must be the same.
pub fn spdy_headers(block: &[u8]) -> Option<[BTreeMap<String, String>; 2]> {
    let read = headers::Decoder::new().decode(block).ok()?;
    let again = headers::Decoder::new().decode(&headers::Encoder::new().encode(&read)).ok()?;
    Some([read, again])
}

/// Decodes one WebSocket message in every framing.
pub fn websocket_message(message: &[u8]) -> usize {
    let message = Bytes::copy_from_slice(message);
    Framing::ALL.into_iter().filter_map(|framing| framing.decode(message.clone())).count()
}

/// Reads terminal sizes from a stream; returns how many there are.
pub fn terminal_sizes(bytes: &[u8]) -> usize {
    let mut sizes = Resizes { messages: None, buffer: bytes.to_vec() };
    std::iter::from_fn(|| sizes.parse()).count()
}

/// Reads and compiles a seccomp profile; returns how many programs it makes.
pub fn seccomp_profile(bytes: &[u8]) -> Result<usize, Error> {
    let profile: seccomp::Profile = serde_json::from_slice(bytes).map_err(|error| Error::Invalid(error.to_string()))?;
    Ok(seccomp::compile(&profile)?.len())
}

/// Looks a user up in an image's files; returns the user's id and the group's id.
pub fn user(name: &str, passwd: &str, group: &str) -> Option<(u32, u32)> {
    let user = User { name: name.to_owned(), ..User::default() };
    let identity = user::look_up(&user, passwd, group).ok()?;
    Some((identity.uid, identity.gid))
}

/// Applies the only device of a folder's CDI specification to a container.
pub fn cdi(folder: PathBuf, device: &str) -> Result<usize, Error> {
    let cdi_devices = vec![v1::CdiDevice { name: device.to_owned() }];
    let mut config = v1::ContainerConfig { cdi_devices, ..v1::ContainerConfig::default() };
    cdi::apply(&mut config, &[folder])?;
    Ok(config.mounts.len())
}

/// Unpacks a layer in this process, as the unpacker does in its own; `plain` is its content without compression.
pub fn unpack_layer(blob: &[u8], plain: &[u8], directory: &Path) -> Result<(), Error> {
    unpacking::work(blob, &Digest::of(plain), Task::Unpack(directory)).map(drop)
}

/// Parses a registry's authentication challenge and its error body; returns how many of the two are readable.
pub fn registry_words(header: &str, body: &[u8]) -> usize {
    let explained = registry::explanation(body);
    usize::from(Challenge::parse(header).is_some()) + usize::from(explained.is_some())
}
