//! Filter, score, reserve, bind
