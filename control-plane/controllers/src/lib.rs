//! One runtime that watches, queues and applies; one file per controller that decides
