//! The flags of `corten bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Clone, Subcommand)]
pub enum Bench {
    /// Benchmark an API server: creates, gets, lists and watches over TLS, in a namespace that is deleted afterwards.
    Api(BenchApi),
}

#[derive(Debug, Clone, Args)]
pub struct BenchApi {
    /// The server, as https://host:port; defaults to that of the kubeconfig.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// The kubeconfig file.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// A bearer token to use instead of a client certificate; `-` reads it from standard input.
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// The CA of the server's certificate; without it and without a kubeconfig, the certificate is not verified.
    #[arg(long, value_name = "FILE")]
    pub certificate_authority: Option<PathBuf>,
    /// The scenarios to run.
    #[arg(long, value_enum, default_value_t = Scenario::All)]
    pub scenario: Scenario,
    /// The number of concurrent connections.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// The duration of each scenario.
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..))]
    pub duration: u16,
    /// The maximum number of requests of a scenario.
    #[arg(long, value_name = "N")]
    pub requests: Option<u64>,
    /// The HTTP version; watches share connections only over HTTP/2.
    #[arg(long, value_enum, default_value_t = HttpVersion::Http1)]
    pub http: HttpVersion,
    /// The number of 1 KiB objects in a list.
    #[arg(long, default_value_t = 5000, value_name = "N")]
    pub objects: u32,
    /// The number of watches on one resource.
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub watchers: u32,
    /// The number of writes per second that the watches receive.
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub writes: u32,
    /// The ID of a server process whose CPU time and memory to measure; may be repeated, for etcd.
    #[arg(long, value_name = "PID")]
    pub server_pid: Vec<u32>,
    /// The output format.
    #[arg(long, value_enum, default_value_t = BenchOutput::Table)]
    pub output: BenchOutput,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    Create,
    Get,
    List,
    Watch,
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HttpVersion {
    #[value(name = "1.1")]
    Http1,
    #[value(name = "2")]
    Http2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchOutput {
    /// Human-readable columns.
    Table,
    /// Tab-separated lines of name, value and unit.
    Tsv,
}
