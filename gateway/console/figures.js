// What is measured of an answer: times are the browser's, token counts are the server's.

export class Figures {
  constructor(now) {
    this.started = now;
    this.first = null;
    this.last = null;
    this.usage = null;
    this.finish = null;
  }

  // A piece of the answer has come.
  mark(now) {
    this.first ??= now;
    this.last = now;
  }

  get firstTokenMs() {
    return this.first === null ? null : this.first - this.started;
  }

  // Tokens a second after the first, the prompt's time apart; null where that cannot be told.
  get rate() {
    const seconds = (this.last - this.first) / 1000;
    const count = (this.usage?.completion_tokens ?? 0) - 1;
    return this.first !== null && count > 0 && seconds > 0 ? count / seconds : null;
  }

  get cached() {
    return this.usage?.prompt_tokens_details?.cached_tokens ?? 0;
  }
}

export const milliseconds = (value) => (value === null ? "–" : value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(2)} s`);

export const perSecond = (value) => (value === null ? "–" : value < 100 ? value.toFixed(1) : String(Math.round(value)));
