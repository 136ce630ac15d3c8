//! Runs work inside another network namespace, on a thread of its own.
//!
//! A thread that entered a namespace is never returned to a pool: it ends with the work, so no other work can run in
//! the wrong namespace by mistake.

use std::fs::File;
use std::path::Path;

use nix::sched::{CloneFlags, setns};

use crate::error::Error;

/// Runs a closure on a new thread inside the network namespace at `path`. Blocks.
///
/// Threads and processes that the closure starts belong to that namespace too.
pub fn enter<T: Send>(path: &Path, run: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let at = |source| Error::Namespace { path: path.to_owned(), source };
    let namespace = File::open(path).map_err(at)?;
    let inside = move || {
        setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(std::io::Error::from)?;
        Ok(run())
    };
    let joined = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, inside)?;
        Ok(thread.join())
    });
    match joined.map_err(at)? {
        Ok(result) => result.map_err(at),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Runs an async function inside a network namespace, on a runtime of its own.
pub(crate) async fn enter_async<T, F>(path: &Path, run: impl FnOnce() -> F + Send + 'static) -> Result<T, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>>,
{
    let path = path.to_owned();
    let blocking = move || {
        let at = |source| Error::Namespace { path: path.clone(), source };
        enter(&path, || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(at)?;
            runtime.block_on(run())
        })?
    };
    tokio::task::spawn_blocking(blocking).await.map_err(|_| Error::Cancelled("entering a network namespace"))?
}
