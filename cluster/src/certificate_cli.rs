//! The command line of certificates and keys: listing them, rotating them, and revoking a node's.

use clap::{Args, Subcommand};

use crate::flag_values::DirectoryFlags;

#[derive(Debug, Clone, Subcommand)]
pub enum Certificate {
    /// List the certificates of this machine: their subjects, when they expire, who uses and who renews them.
    List(DirectoryFlags),
}

#[derive(Debug, Clone, Subcommand)]
pub enum Ca {
    /// Replace the cluster's certificate authorities while it runs: new ones sign, the old ones stay trusted until --finish.
    Rotate(CaRotate),
}

#[derive(Debug, Clone, Args)]
pub struct CaRotate {
    #[command(flatten)]
    pub directories: DirectoryFlags,
    /// End the rotation: the old authorities are no longer trusted. Refused while a node has not followed.
    #[arg(long)]
    pub finish: bool,
    /// End the rotation although nodes have not followed; they must join again.
    #[arg(long, requires = "finish")]
    pub force: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub enum ServiceAccountKey {
    /// Replace the key that signs ServiceAccount tokens: a new one signs, tokens of the old one are accepted until --finish.
    Rotate(ServiceAccountKeyRotate),
}

#[derive(Debug, Clone, Args)]
pub struct ServiceAccountKeyRotate {
    #[command(flatten)]
    pub directories: DirectoryFlags,
    /// End the rotation: tokens of the old key are refused.
    #[arg(long)]
    pub finish: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub enum EncryptionKey {
    /// Replace the cluster's own key that encrypts Secrets at rest, and rewrite all Secrets. May be interrupted and repeated.
    Rotate(DirectoryFlags),
}

#[derive(Debug, Clone, Subcommand)]
pub enum NodeCommand {
    /// Refuse the credentials of a node from now on, and delete its Node. The machine may join again with a new token.
    Revoke(NodeRevoke),
}

#[derive(Debug, Clone, Args)]
pub struct NodeRevoke {
    #[command(flatten)]
    pub directories: DirectoryFlags,
    /// The name of the node.
    #[arg(value_name = "NAME")]
    pub name: String,
}
