//! Serves the embedded store of a directory as etcd on a unix socket: `serve DIR SOCKET`.

use std::path::PathBuf;

use corten_etcd_server::{Limits, Member, Server, bind_unix, serve_unix};
use corten_store::{Config, Embedded};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(dir), Some(socket)) = (arguments.next(), arguments.next()) else {
        return Err("usage: serve DIR SOCKET".into());
    };
    let store = Embedded::open(Config::new(dir))?;
    let member = Member::named("example", vec![format!("unix://{}", socket.display())]);
    let listener = bind_unix(&socket)?;
    serve_unix(Server::new(store, member, Limits::default(), CancellationToken::new()), listener).await?;
    Ok(())
}
