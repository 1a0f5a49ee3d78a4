// Starts the page.

import { render } from 'preact';
import { useEffect } from 'preact/hooks';
import { startClock } from './clock';
import { route } from './router';
import { recordSpeeds } from './samples';
import { open, session, watchCodes } from './session';
import { watchVisibility } from './store';
import { Empty } from './ui/State';
import { Apply } from './view/Apply';
import { Claim, Claims } from './view/Claims';
import { Deployment } from './view/Deployment';
import { Deployments } from './view/Deployments';
import { Events } from './view/Events';
import { Fleet } from './view/Fleet';
import { Frame } from './view/Frame';
import { Mac } from './view/Mac';
import { Plan, Plans } from './view/Plans';
import { Playground } from './view/Playground';
import { Replica } from './view/Replica';
import { Replicas } from './view/Replicas';
import { Requests } from './view/Requests';
import { SignIn, Waiting } from './view/SignIn';
import { WhatIf } from './view/WhatIf';

function View() {
  const parts = route.value;
  const key = parts.join('/');
  useEffect(() => window.scrollTo(0, 0), [key]);
  const [view = 'macs', first, second] = parts;
  const named = first !== undefined && second !== undefined ? { namespace: first, name: second } : undefined;
  switch (view) {
    case 'macs':
      return first === undefined ? <Fleet /> : <Mac key={key} name={first} />;
    case 'deployments':
      return named ? <Deployment key={key} {...named} /> : <Deployments />;
    case 'replicas':
      return named ? <Replica key={key} {...named} /> : <Replicas />;
    case 'playground':
      return <Playground />;
    case 'requests':
      return <Requests />;
    case 'plans':
      return named ? <Plan key={key} {...named} /> : first === 'new' ? <WhatIf /> : <Plans />;
    case 'claims':
      return named ? <Claim key={key} {...named} /> : <Claims />;
    case 'events':
      return <Events />;
    case 'apply':
      return <Apply key={key} example={first} />;
    default:
      return <Empty title="The page has no such view"><a href="#/macs">Show the fleet</a></Empty>;
  }
}

function Page() {
  if (session.value === undefined) return <Waiting />;
  if (session.value === null) return <SignIn />;
  return <Frame><View /></Frame>;
}

startClock();
recordSpeeds();
watchVisibility();
watchCodes();
void open();
const container = document.getElementById('page')!;
// The document shows the frame that <Waiting /> shows.
container.replaceChildren();
render(<Page />, container);
