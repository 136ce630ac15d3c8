//! The state that the connections of a listener share: its table, and the signals that end them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use crate::table::Table;

/// The state that the connections of a listener share.
#[derive(Debug)]
pub(crate) struct ListenerState {
    table: ArcSwap<Table>,
    is_retired: AtomicBool,
    retire: CancellationToken,
    drain: CancellationToken,
    kill: CancellationToken,
}

impl ListenerState {
    pub(crate) fn new(table: Arc<Table>) -> ListenerState {
        ListenerState {
            table: ArcSwap::new(table),
            is_retired: AtomicBool::new(false),
            retire: CancellationToken::new(),
            drain: CancellationToken::new(),
            kill: CancellationToken::new(),
        }
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    pub(crate) fn set_table(&self, table: Arc<Table>) {
        self.table.store(table);
    }

    /// Ends accepting, because another process accepts from the same socket. Connections that wait for a request answer
    /// one more: a client may be sending it.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
        self.retire.cancel();
    }

    /// Reports whether another process accepts from the socket.
    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Relaxed)
    }

    /// Resolves when another process accepts from the socket.
    pub(crate) async fn retired(&self) {
        self.retire.cancelled().await;
    }

    /// Lets connections take no further request.
    pub(crate) fn drain(&self) {
        self.retire();
        self.drain.cancel();
    }

    /// Ends connections.
    pub(crate) fn kill(&self) {
        self.kill.cancel();
    }

    /// Resolves when connections take no further request.
    pub(crate) async fn drained(&self) {
        self.drain.cancelled().await;
    }

    /// Resolves when connections must end.
    pub(crate) async fn killed(&self) {
        self.kill.cancelled().await;
    }
}
