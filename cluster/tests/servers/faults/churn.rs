//! Servers that join and leave at random under load: up to seven of them, never fewer than three.

use std::time::Instant;

use corten_members::Members;
use testkit::random::Random;
use testkit::wait;

use super::plan::{Change, next_change};
use super::{CALM, FIRST, Length, NAMES, Run, World, seconds, summarize};
use crate::machines::{credentials, join};

/// Lets servers join and leave for a time, or so many times; panics if the checker finds a violation.
pub fn churn(world: &World, run: &Run) {
    let mut active: Vec<usize> = (0..FIRST).collect();
    let load = world.under_load(run.seed, run.rate, |load| {
        let mut random = Random::new(run.seed);
        let start = Instant::now();
        for number in 0.. {
            let is_over = match run.length {
                Length::Faults(count) => number >= count,
                Length::Time(time) => start.elapsed() >= time,
            };
            if is_over {
                break;
            }
            std::thread::sleep(CALM);
            let began = load.now();
            let change = next_change(&mut random, &active, world.servers.len());
            world.change(change, &mut active);
            world.recovered_among(&active);
            let names: Vec<&str> = active.iter().map(|index| NAMES[*index]).collect();
            let took = seconds(load.now() - began);
            println!("{:>6.1} s  {change:?} took {took:.1} s; servers: {}", seconds(began), names.join(", "));
        }
        std::thread::sleep(CALM);
    });
    let violations = summarize(run, &load, &[]);
    assert!(violations.is_empty(), "{} violations, with seed {}", violations.len(), run.seed);
}

impl World {
    fn change(&self, change: Change, active: &mut Vec<usize>) {
        match change {
            Change::Join(index) => {
                let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
                join(&self.servers[index], &self.servers[active[0]], NAMES[index], &self.etcd, &flags);
                active.push(index);
            }
            Change::Leave(index) => {
                active.retain(|other| *other != index);
                let from = &self.servers[active[0]];
                from.kubectl(&["delete", "node", NAMES[index], "--wait=false"]);
                self.until_removed(active, NAMES[index]);
                self.servers[index].corten(&["down", "--purge"]);
            }
        }
    }

    /// Waits until a member is removed.
    fn until_removed(&self, active: &[usize], name: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let urls = active.iter().map(|index| format!("https://{}:2379", super::ADDRESSES[*index])).collect();
        let members = Members::new(urls, &credentials(&self.servers[active[0]])).unwrap();
        wait::until(&format!("{name} is no member"), wait::BOUND, || {
            let list = runtime.block_on(members.list()).map_err(|error| error.to_string())?;
            match list.members.iter().any(|member| member.name == name) {
                true => Err(format!("{list:?}")),
                false => Ok(()),
            }
        });
    }
}
