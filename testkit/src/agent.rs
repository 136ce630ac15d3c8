//! An agent on a machine of a test: a node of a cluster elsewhere.

use std::fs::File;
use std::process::Child;

use crate::cluster::Cluster;

/// A process `corten agent` that ends with the test.
pub struct Agent(Child);

impl Agent {
    /// Starts an agent with its log in the machine's scratch directory.
    pub fn start(on: &Cluster, arguments: &[&str]) -> Agent {
        let log = File::options().create(true).append(true).open(on.agent_log()).expect("the directory is writable");
        let mut command = on.corten_command(arguments);
        command.stdout(log.try_clone().expect("a file can be opened twice")).stderr(log);
        Agent(command.spawn().expect("the program runs"))
    }

    /// Stops the node as its administrator does, and waits for the agent's end.
    pub fn stop(mut self, on: &Cluster) {
        on.corten(&["down"]);
        self.0.wait().expect("the agent is a child of the test");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
