//! The state that the connections of a listener share: its table, and the signals that end them.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use crate::table::Table;

/// The state that the connections of a listener share.
#[derive(Debug)]
pub(crate) struct ListenerState {
    table: ArcSwap<Table>,
    drain: CancellationToken,
    kill: CancellationToken,
}

impl ListenerState {
    pub(crate) fn new(table: Arc<Table>) -> ListenerState {
        ListenerState { table: ArcSwap::new(table), drain: CancellationToken::new(), kill: CancellationToken::new() }
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    pub(crate) fn set_table(&self, table: Arc<Table>) {
        self.table.store(table);
    }

    /// Lets connections take no further request.
    pub(crate) fn drain(&self) {
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
