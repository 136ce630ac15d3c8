//! The next step of a machine on its way to being a member: a pure function of the members and of what the machine has.
//!
//! Steps are decided one at a time from what is seen, so that a join that was interrupted anywhere goes on from there.

use crate::client::Member;

/// A machine that is to be a member.
#[derive(Clone, Debug)]
pub struct Own {
    pub name: String,
    pub peer_url: String,
    /// The id that the machine remembers.
    pub member: Option<u64>,
    /// Whether the machine has a member's data.
    pub has_data: bool,
    /// Whether the administrator asked the machine to join.
    pub may_join: bool,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Start etcd: with the data, or as the member of this id, which was added for it.
    Start(u64),
    /// Tell the others the machine's new address, then start.
    Update(u64),
    /// Move the data aside: it belongs to a member that the cluster no longer has.
    SetAside,
    /// End: the cluster no longer has this member, and the administrator did not ask to join again.
    Removed,
    /// Remove a member: the machine's own from before it lost its data, or that of a dead machine of its name.
    Remove(u64),
    /// Add the machine as a learner.
    Add,
    /// Wait for the learner with this peer URL: etcd has one at a time.
    Wait(String),
}

/// Returns the next step of a machine.
pub fn next(own: &Own, members: &[Member]) -> Step {
    if own.has_data {
        return with_data(own, members);
    }
    if let Some(mine) = members.iter().find(|member| is_own(own, member)) {
        // One that never started has lost nothing and goes on; another has promised the others data that is gone.
        let is_resumed = mine.is_learner && !mine.has_started() && mine.peer_urls.contains(&own.peer_url);
        return if is_resumed { Step::Start(mine.id) } else { Step::Remove(mine.id) };
    }
    match members.iter().find(|member| member.is_learner) {
        Some(learner) => Step::Wait(learner.peer_urls.first().cloned().unwrap_or_default()),
        None => Step::Add,
    }
}

fn with_data(own: &Own, members: &[Member]) -> Step {
    match members.iter().find(|member| Some(member.id) == own.member) {
        Some(mine) if mine.peer_urls.contains(&own.peer_url) => Step::Start(mine.id),
        Some(mine) => Step::Update(mine.id),
        None if own.may_join => Step::SetAside,
        None => Step::Removed,
    }
}

fn is_own(own: &Own, member: &Member) -> bool {
    Some(member.id) == own.member || member.name == own.name || member.peer_urls.contains(&own.peer_url)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members as `id name host`, with a `?` after the id of a learner and `-` for the name of one that never started.
    fn members(text: &str) -> Vec<Member> {
        let member = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [id, name, host] = words[..] else { panic!("{line}") };
            Member {
                id: id.trim_end_matches('?').parse().unwrap(),
                name: name.trim_matches('-').to_owned(),
                peer_urls: vec![format!("https://{host}:2380")],
                client_urls: Vec::new(),
                is_learner: id.ends_with('?'),
            }
        };
        text.split(',').map(member).collect()
    }

    #[test]
    fn the_next_step_follows_from_the_members_and_the_machine() {
        use Step::*;
        let another = Wait("https://d:2380".to_owned());
        for (title, member, has_data, may_join, list, expected) in [
            ("a new machine", None, false, true, "1 a a, 2 b b", Add),
            ("a learner is ahead of it", None, false, true, "1 a a, 4? - d", another.clone()),
            ("a started learner is ahead of it", None, false, true, "1 a a, 4? d d", another),
            ("an attempt that ended before the start", Some(3), false, true, "1 a a, 3? - c", Start(3)),
            ("an attempt that ended before it was written down", None, false, true, "1 a a, 3? - c", Start(3)),
            ("a learner that lost its data", Some(3), false, true, "1 a a, 3? c c", Remove(3)),
            ("a voter that lost its data", Some(3), false, false, "1 a a, 2 b b, 3 c c", Remove(3)),
            ("a dead machine of the same name", None, false, true, "1 a a, 2 b b, 3 c x", Remove(3)),
            ("a dead machine of the same address", None, false, true, "1 a a, 2 b b, 3 x c", Remove(3)),
            ("a voter that never started", None, false, true, "1 a a, 3 - c", Remove(3)),
            ("a restart", Some(3), true, false, "1 a a, 3 c c", Start(3)),
            ("a restart of a learner", Some(3), true, true, "1 a a, 3? c c", Start(3)),
            ("a restart at a new address", Some(3), true, false, "1 a a, 3 c old", Update(3)),
            ("a member that was removed", Some(3), true, false, "1 a a, 2 b b", Removed),
            ("a member that was removed joins again", Some(3), true, true, "1 a a, 2 b b", SetAside),
            ("another took its place", Some(3), true, true, "1 a a, 5 c c", SetAside),
            ("data of an unknown member", None, true, true, "1 a a", SetAside),
        ] {
            let own = Own { name: "c".to_owned(), peer_url: "https://c:2380".to_owned(), member, has_data, may_join };
            assert_eq!(next(&own, &members(list)), expected, "{title}");
        }
    }

    #[test]
    fn a_join_that_is_interrupted_anywhere_ends_at_the_start() {
        let mut list = members("1 a a, 2 b b, 9 c old");
        let mut own = Own {
            name: "c".to_owned(),
            peer_url: "https://c:2380".to_owned(),
            member: Some(9),
            has_data: true,
            may_join: true,
        };
        let mut steps = Vec::new();
        list.retain(|member| member.id != 9);
        loop {
            let step = next(&own, &list);
            steps.push(step.clone());
            match step {
                Step::SetAside => own.has_data = false,
                Step::Add => list.extend(members("3? - c")),
                Step::Start(3) => break,
                other => panic!("{other:?} after {steps:?}"),
            }
        }
        assert_eq!(steps, [Step::SetAside, Step::Add, Step::Start(3)]);
    }
}
