// Shows the figures of the page from the JSON in it. Every text reaches the
// page as text, by textContent.
(() => {
  const {figures} = JSON.parse(document.getElementById('page-data').textContent);
  const state = new URLSearchParams(location.hash.slice(1));
  const MOST_ROWS = 2000;
  const logX = document.getElementById('log-x');

  function chosen(figure) {
    const select = document.getElementById(`${figure.id}-choice`);
    return figure.choices[select ? Number(select.value) : 0];
  }

  function rows(figure) {
    const choice = chosen(figure);
    if (figure.kind === 'table') return choice;
    if (figure.kind === 'heat') {
      return {
        columns: [choice.x_title, ...choice.y],
        rows: choice.x.map((x, i) => [x, ...choice.z.map((row) => row[i])]),
      };
    }
    const at = new Map();
    const empty = choice.traces.map(({level, y}) => (level ? y[0] : null));
    choice.traces.forEach(({x, y, level}, k) => level || x.forEach((step, i) => {
      if (!at.has(step)) at.set(step, [...empty]);
      at.get(step)[k] = y[i];
    }));
    const order = [...at.keys()].sort((a, b) => a - b);
    return {
      columns: [choice.x_title, ...choice.traces.map((trace) => trace.name)],
      rows: order.map((step) => [step, ...at.get(step)]),
    };
  }

  function few(all) {
    if (all.length <= MOST_ROWS) return all;
    const last = all.length - 1;
    return Array.from(
      {length: MOST_ROWS}, (_, i) => all[Math.round(i * last / (MOST_ROWS - 1))]);
  }

  function element(name, text) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function cell(value) {
    const made = element('td');
    if (typeof value === 'number') {
      made.className = 'number';
      made.textContent = Number(value.toPrecision(6)).toLocaleString('en-US', {
        maximumSignificantDigits: 6, useGrouping: false,
      });
    } else if (Array.isArray(value)) {
      made.className = 'rich';
      value.forEach((part, i) => made.append(element(i % 2 ? 'mark' : 'span', part)));
    } else {
      made.textContent = value === null ? '' : value;
      if (made.textContent.length > 12) made.className = 'long';
    }
    return made;
  }

  function table(figure) {
    const {columns, rows: all} = rows(figure);
    const shown = figure.kind === 'table' ? all : few(all);
    const made = element('table');
    const head = made.createTHead().insertRow();
    columns.forEach((name) => {
      const th = element('th', name);
      th.scope = 'col';
      head.append(th);
    });
    const body = made.createTBody();
    shown.forEach((row) => body.insertRow().append(...row.map(cell)));
    const place = document.querySelector(`#${figure.id} .table`);
    place.replaceChildren(made);
    if (shown.length < all.length) {
      place.prepend(element('p', `${shown.length} of ${all.length} points`));
    }
  }

  function show(figure) {
    if (figure.kind === 'text') {
      document.querySelector(`#${figure.id} pre`).textContent = chosen(figure).text;
    } else if (figure.kind === 'table') {
      table(figure);
    } else {
      const node = (name) => document.querySelector(`#${figure.id} .${name}`);
      if (window.Plotly) {
        plot(node('plot'), figure.kind, chosen(figure), logX && logX.checked);
      }
      if (node('numbers').open) table(figure);
    }
  }

  function remember(name, value) {
    if (value === '') state.delete(name); else state.set(name, value);
    history.replaceState(null, '', `#${state}`);
  }

  function connect(figure) {
    const select = document.getElementById(`${figure.id}-choice`);
    if (select) {
      const kept = Number(state.get(figure.id) ?? NaN);
      if (kept in figure.choices) select.value = String(kept);
      select.addEventListener('change', () => {
        remember(figure.id, select.value);
        show(figure);
      });
    }
    const numbers = document.querySelector(`#${figure.id} .numbers`);
    if (numbers) {
      numbers.addEventListener('toggle', () => numbers.open && table(figure));
      if (!window.Plotly) {
        document.querySelector(`#${figure.id} .plot`).remove();
        numbers.open = true;
      }
    }
  }

  function toggle(id, act) {
    const box = document.getElementById(id);
    if (!box) return;
    box.checked = state.has(id);
    box.addEventListener('change', () => {
      remember(id, box.checked ? '1' : '');
      act(box.checked);
    });
    act(box.checked);
  }

  addEventListener('DOMContentLoaded', () => {
    document.querySelector('.tools').hidden = false;
    const drawn = figures.filter((figure) => figure.choices.length);
    const plots = drawn.filter((f) => ['lines', 'heat'].includes(f.kind));
    if (!window.Plotly && plots.length) {
      const note = element('p',
        'plotly.min.js is not beside this page: here are the numbers alone.');
      note.className = 'note';
      document.querySelector('header').append(note);
    }
    drawn.forEach(connect);
    let timer;
    toggle('reload', (on) => {
      clearTimeout(timer);
      if (on) timer = setTimeout(() => location.reload(), 60000);
    });
    // A plot is drawn when it comes near: the first ones are there at once.
    const waiting = new Map(plots.map((f) => [document.getElementById(f.id), f]));
    const redraw = () =>
      plots.filter((f) => ![...waiting.values()].includes(f)).forEach(show);
    const near = new IntersectionObserver((entries) => {
      entries.filter((e) => e.isIntersecting).forEach((e) => come(e.target));
      document.documentElement.dataset.drawn = plots.length - waiting.size;
    }, {rootMargin: '300px'});
    function come(section) {
      const figure = waiting.get(section);
      waiting.delete(section);
      near.unobserve(section);
      if (figure) show(figure);
    }
    toggle('log-x', redraw);
    drawn.filter((figure) => !plots.includes(figure)).forEach(show);
    waiting.forEach((_, section) => near.observe(section));
    if (!plots.length) document.documentElement.dataset.drawn = 0;
    addEventListener('beforeprint', () => [...waiting.keys()].forEach(come));
    dark.addEventListener('change', redraw);
  });
})();
