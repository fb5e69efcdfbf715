// Draws the figures of the page from the JSON in it. Every text reaches the
// page as text: by textContent, or escaped for plotly's pseudo-HTML.
'use strict';
(() => {
  const {figures} = JSON.parse(document.getElementById('data').textContent);
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const state = new URLSearchParams(location.hash.slice(1));
  const LINES = {
    light: ['#0b63a5', '#c8500a', '#15803d', '#a3468c', '#8a6d00', '#4b5563'],
    dark: ['#6cb6f5', '#ff9a5c', '#5fd08f', '#e79ad0', '#e6c34a', '#aab4c0'],
  };
  const HEAT = {
    light: [[0, '#c8500a'], [0.5, '#f5f5f3'], [1, '#0b4f88']],
    dark: [[0, '#f08a45'], [0.5, '#23282e'], [1, '#6cb6f5']],
  };
  const DASHES = ['solid', 'dot', 'dash', 'dashdot'];
  const MOST_ROWS = 2000;
  const theme = () => (dark.matches ? 'dark' : 'light');
  const css = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const plain = (text) => String(text)
    .replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
  const logX = document.getElementById('log-x');

  function chosen(figure) {
    const select = document.getElementById(`${figure.id}-choice`);
    return figure.choices[select ? Number(select.value) : 0];
  }

  function axis(title, more) {
    return {
      title: {text: plain(title), standoff: 6}, automargin: true,
      gridcolor: css('--line'), linecolor: css('--line'), zeroline: false,
      ...more,
    };
  }

  function layout(more) {
    return {
      paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
      font: {color: css('--ink'), family: 'inherit', size: 12},
      margin: {l: 8, r: 12, t: 12, b: 8}, hovermode: 'x unified',
      // A finger scrolls the page, a mouse zooms; a double click goes back.
      dragmode: matchMedia('(pointer: coarse)').matches ? false : 'zoom',
      hoverlabel: {bgcolor: css('--card'), font: {color: css('--ink')}},
      legend: {orientation: 'h', x: 0, y: -0.22, yanchor: 'top'},
      ...more,
    };
  }

  function lines(choice) {
    const colours = LINES[theme()];
    const data = choice.traces.flatMap((trace) => {
      const [colour, dash] = trace.place.map(Number);
      const whole = {
        type: 'scatter', name: plain(trace.name), x: trace.x, y: trace.y,
        line: {
          color: colours[colour % colours.length], width: 1.8,
          dash: DASHES[dash % DASHES.length],
        },
        mode: trace.x.length < 40 ? 'lines+markers' : 'lines',
        marker: {size: 5}, hovertemplate: '%{y:.5~g}',
      };
      if (!trace.mean) return [whole];
      // Every stretch from least to most, pale, and its mean.
      const range = {
        ...whole, opacity: 0.3, line: {...whole.line, width: 1},
        showlegend: false, hoverinfo: 'skip', hovertemplate: undefined,
      };
      return [range, {...whole, x: trace.mean[0], y: trace.mean[1]}];
    });
    const marks = choice.marks || [];
    if (marks.length) {
      data.push({
        type: 'scatter', mode: 'markers', name: 'incident', yaxis: 'y2',
        x: marks.map((m) => m.x), y: marks.map(() => 1),
        text: marks.map((m) => plain(m.text)), hovertemplate: '%{text}',
        marker: {symbol: 'triangle-down', size: 9, color: css('--dim')},
      });
    }
    const shapes = marks.map((m) => ({
      type: 'line', x0: m.x, x1: m.x, y0: 0, y1: 1, yref: 'paper',
      line: {color: css('--dim'), width: 1, dash: 'dot'},
    }));
    const whole = choice.x_title === 'layer' ?
      {tickformat: 'd', dtick: Math.ceil((choice.traces[0].x.length + 1) / 12)} : {};
    const type = logX && logX.checked && choice.x_title === 'step' ? 'log' : '-';
    return [data, layout({
      shapes, showlegend: choice.traces.length > 1 || marks.length > 0,
      xaxis: axis(choice.x_title, {type, rangemode: 'tozero', ...whole}),
      yaxis: axis(choice.y_title, {
        type: choice.log ? 'log' : '-', exponentformat: 'power',
        minexponent: 4, tickformat: choice.tick,
      }),
      yaxis2: {overlaying: 'y', range: [0, 1], visible: false, fixedrange: true},
    })];
  }

  function heat(choice) {
    const part = (keep, more) => ({
      type: 'heatmap', x: choice.x.map(String),
      y: choice.y.map(plain),
      z: choice.z.map((row, i) => (keep(choice.y[i]) ? row : row.map(() => null))),
      zmin: 0, hoverongaps: false, xgap: choice.x.length < 40 ? 1 : 0, ygap: 1,
      hovertemplate: `${plain(choice.x_title)} %{x}, %{y}: ` +
        '%{z} %<extra></extra>',
      ...more,
    });
    const data = [part((name) => name !== 'skip', {
      zmid: 100, zmax: 200, colorscale: HEAT[theme()],
      colorbar: {
        thickness: 10, outlinewidth: 0, tickvals: [0, 100, 200],
        ticktext: ['0', 'even', '2x'], xpad: 4,
      },
    })];
    if (choice.y.includes('skip')) {
      data.push(part((name) => name === 'skip', {
        zmax: 200, showscale: false, colorscale: [[0, css('--card')], [1, css('--dim')]],
      }));
    }
    return [data, layout({
      hovermode: 'closest',
      xaxis: axis(choice.x_title, {type: 'category', nticks: innerWidth < 600 ? 4 : 10, tickangle: 0}),
      yaxis: axis('expert', {
        type: 'category', autorange: 'reversed', dtick: 1,
      }),
    })];
  }

  function draw(figure) {
    const node = document.querySelector(`#${figure.id} .plot`);
    const choice = chosen(figure);
    const rem = figure.kind === 'heat' ? 5 + 1.25 * choice.y.length :
      17.5 + 1.3 * Math.ceil((choice.traces.length - 1) / 2);
    node.style.height = `${Math.max(19, rem)}rem`;
    const [data, form] = (figure.kind === 'heat' ? heat : lines)(choice);
    Plotly.react(node, data, form, {
      responsive: true, displayModeBar: false,
    });
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
    choice.traces.forEach(({x, y}, k) => x.forEach((step, i) => {
      if (!at.has(step)) at.set(step, choice.traces.map(() => null));
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
      if (window.Plotly) draw(figure);
      if (document.querySelector(`#${figure.id} .numbers`).open) table(figure);
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
