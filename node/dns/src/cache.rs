//! The cache of answers of upstream resolvers.
//!
//! Time comes in as an argument. The cache is bounded: when it is full, expired entries are evicted first, then those
//! that expire soonest.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};

/// The longest lifetime of a positive and of a negative answer.
const MAXIMUM: Duration = Duration::from_secs(300);
const MAXIMUM_DENIAL: Duration = Duration::from_secs(30);

/// A query: the name in lower case, the type, and whether signatures are wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    pub name: Name,
    pub record_type: RecordType,
    pub dnssec: bool,
}

struct Entry {
    response: Arc<Message>,
    stored: Instant,
    expires: Instant,
}

/// Answers of upstream resolvers.
pub(crate) struct Cache {
    entries: HashMap<Question, Entry>,
    size: usize,
}

impl Cache {
    pub fn new(size: usize) -> Cache {
        Cache { entries: HashMap::new(), size }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the answer with its current times to live.
    pub fn get(&self, question: &Question, now: Instant) -> Option<Message> {
        let entry = self.entries.get(question).filter(|entry| entry.expires > now)?;
        let age = now.duration_since(entry.stored).as_secs() as u32;
        let mut response = Message::clone(&entry.response);
        let Message { answers, authorities, additionals, .. } = &mut response;
        for record in answers.iter_mut().chain(authorities).chain(additionals) {
            record.decrement_ttl(age);
        }
        Some(response)
    }

    pub fn insert(&mut self, question: Question, response: Arc<Message>, now: Instant) {
        let Some(lifetime) = lifetime(&response) else { return };
        if self.size == 0 {
            return;
        }
        if self.entries.len() >= self.size && !self.entries.contains_key(&question) {
            self.make_room(now);
        }
        self.entries.insert(question, Entry { response, stored: now, expires: now + lifetime });
    }

    /// Frees an eighth at once, so that a full cache is not searched for every answer.
    fn make_room(&mut self, now: Instant) {
        self.entries.retain(|_, entry| entry.expires > now);
        let keep = self.size - (self.size / 8).max(1);
        if self.entries.len() <= keep {
            return;
        }
        let mut times: Vec<Instant> = self.entries.values().map(|entry| entry.expires).collect();
        let surplus = times.len() - keep;
        let (_, last, _) = times.select_nth_unstable(surplus - 1);
        let last = *last;
        let mut left = surplus;
        self.entries.retain(|_, entry| {
            let doomed = left > 0 && entry.expires <= last;
            left -= usize::from(doomed);
            !doomed
        });
    }
}

/// Returns the lifetime of an answer; `None` if it must not be cached.
fn lifetime(response: &Message) -> Option<Duration> {
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    if response.metadata.truncation {
        return None;
    }
    let lifetime = match response.metadata.response_code {
        ResponseCode::NoError if !response.answers.is_empty() => {
            seconds(response.answers.iter().map(|record| record.ttl).min()?).min(MAXIMUM)
        }
        ResponseCode::NoError | ResponseCode::NXDomain => {
            let soa = response.authorities.iter().find_map(|record| match &record.data {
                RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
                _ => None,
            });
            seconds(soa?).min(MAXIMUM_DENIAL)
        }
        _ => return None,
    };
    (!lifetime.is_zero()).then_some(lifetime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::op::OpCode;
    use hickory_proto::rr::Record;
    use hickory_proto::rr::rdata::{A, SOA};

    fn question(name: &str) -> Question {
        Question { name: Name::from_ascii(name).unwrap(), record_type: RecordType::A, dnssec: false }
    }

    fn answer(ttl: u32) -> Message {
        let mut message = Message::response(0, OpCode::Query);
        message.add_answer(Record::from_rdata(Name::root(), ttl, RData::A(A::new(192, 0, 2, 1))));
        message
    }

    fn denial(ttl: u32, minimum: u32) -> Message {
        let mut message = Message::error_msg(0, OpCode::Query, ResponseCode::NXDomain);
        let soa = SOA::new(Name::root(), Name::root(), 1, 1, 1, 1, minimum);
        message.add_authority(Record::from_rdata(Name::root(), ttl, RData::SOA(soa)));
        message
    }

    #[test]
    fn lifetimes() {
        let seconds = |message: &Message| lifetime(message).map(|lifetime| lifetime.as_secs());
        assert_eq!(seconds(&answer(60)), Some(60));
        assert_eq!(seconds(&answer(86_400)), Some(300));
        assert_eq!(seconds(&answer(0)), None);
        assert_eq!(seconds(&denial(60, 10)), Some(10));
        assert_eq!(seconds(&denial(3600, 900)), Some(30));
        assert_eq!(seconds(&Message::error_msg(0, OpCode::Query, ResponseCode::ServFail)), None);
        assert_eq!(seconds(&Message::error_msg(0, OpCode::Query, ResponseCode::NXDomain)), None);
        let mut cut = answer(60);
        cut.metadata.truncation = true;
        assert_eq!(seconds(&cut), None);
    }

    #[test]
    fn answers_age_and_expire() {
        let mut cache = Cache::new(8);
        let start = Instant::now();
        cache.insert(question("a."), Arc::new(answer(60)), start);
        let later = cache.get(&question("a."), start + Duration::from_secs(45)).unwrap();
        assert_eq!(later.answers[0].ttl, 15);
        assert!(cache.get(&question("a."), start + Duration::from_secs(60)).is_none());
        assert!(cache.get(&question("b."), start).is_none());
    }

    #[test]
    fn a_full_cache_evicts_the_answers_that_expire_soonest() {
        let mut cache = Cache::new(8);
        let start = Instant::now();
        for n in 0..20u32 {
            cache.insert(question(&format!("n{n}.")), Arc::new(answer(20 + n)), start);
            assert!(cache.entries.len() <= 8);
        }
        assert!(cache.get(&question("n19."), start).is_some());
        assert!(cache.get(&question("n0."), start).is_none());
    }
}
